"""Frames and the README's table against the hand-made truth of the synthetic run."""

import math
import sys
from pathlib import Path

import pytest

from kvtop_lib import tables
from kvtop_lib.store import Run
from kvtop_lib.tables.__main__ import main
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic"))


@pytest.fixture(scope="module")
def points(run):
    return tables.points(run)


def test_points_keep_the_last_attempt_and_no_number_of_a_failure(points):
    assert len(points) == len(truth.ARMS) * len(truth.LOADS) * 2
    assert list(dict.fromkeys(points["arm"])) == list(truth.ARMS)
    retried = points[(points.arm == "baseline") & (points.block == 1) & (points.c == 8)].iloc[0]
    assert (retried.attempt, retried.status, retried.output_tok_s) == (2, "ok", 160.0)
    assert retried.line == 5  # lines 1 to 3 are c = 1, 2, 4; line 4 is the failed attempt
    bad = points[points.status != "ok"]
    assert set(zip(bad.arm, bad.block, bad.c, bad.status, strict=True)) == {
        ("ngram", 2, 32, "failed"), ("mtp_w4", 1, 16, "invalid"),
    }  # fmt: skip
    assert bad[list(tables.FIELDS)].isna().all(axis=None)


def test_points_of_open_loads_are_no_points_by_lanes(tmp_path, points):
    run = Run(truth.write_run(tmp_path / "mixed"))
    like = {k: v for k, v in run.lines()[-1].items() if k != "line"}
    run.append_result({**like, "load": "r0.50", "c": None, "rate": 0.5})
    mixed = tables.points(run)
    assert len(mixed) == len(points) and list(mixed.c) == list(points.c)
    assert tables.points(run, "rates").c.tolist() == [0.5]
    assert mixed.c.dtype.kind == "i"


def test_by_load_means_over_ok_blocks(points):
    mean = tables.by_load(points, "output_tok_s").set_index(["arm", "c"])
    assert mean.loc[("baseline", 1), "mean"] == pytest.approx((40 + 40.8) / 2)
    assert mean.loc[("baseline", 1), "lines"] == [1, 44]
    only = mean.loc[("ngram", 32)]  # block 2 failed
    assert (only["n"], only["status"]) == (1, "failed")
    assert only["mean"] == pytest.approx(250 * 0.85 * 1.01)


def test_ratios_are_formed_within_blocks(points):
    ratio = tables.ratios(points).set_index(["arm", "c"])
    assert "baseline" not in ratio.index
    for (arm, c), row in ratio.iterrows():
        if row["n"] == 2:  # block 2 was 2 % faster for all: no ratio may show it
            assert row["mean"] == pytest.approx(truth.RATIO[arm][c])
            assert row["low"] < row["mean"] < row["high"]
        else:
            assert row["low"] is None or math.isnan(row["low"])
    assert ratio.loc[("mtp_w2", 1), "lines"] == [(8, 1), (38, 44)]
    assert ratio.loc[("mtp_w4", 16), "n"] == 1


def test_ratios_without_a_baseline_are_empty_not_wrong(points):
    gone = points.assign(status=points["status"].mask(points["arm"] == "baseline", "failed"))
    assert tables.ratios(gone)["n"].tolist() == [0] * 18


def test_yield_and_cost_multiply_to_the_ratio(points):
    plane = tables.yield_and_cost(points).set_index(["arm", "c"])
    row = plane.loc[("mtp_w2", 1)]
    assert row["yield_ratio"] == pytest.approx(1.7)
    assert row["cost_ratio"] == pytest.approx(1.7 / 1.3)


def test_decomposition_adds_up_and_names_what_is_left(points):
    parts = tables.decomposition(points).set_index(["arm", "c", "factor"])["log_ratio"]
    at = parts["mtp_w2", 32]
    assert at["tokens per iteration"] == pytest.approx(math.log(1.7))
    assert at["iteration time"] == pytest.approx(math.log(0.9 / 1.7))
    assert at["requests decoding"] == pytest.approx(0) and at["remainder"] == pytest.approx(0)
    assert at.sum() == pytest.approx(math.log(0.9))
    # half as many requests decode, at the same throughput: the factor and the remainder say so
    fewer = points.assign(
        decoding_mean=points["decoding_mean"].where(points["arm"] != "mtp_w2", lambda x: x / 2)
    )
    at = tables.decomposition(fewer).set_index(["arm", "c", "factor"])["log_ratio"]["mtp_w2", 32]
    assert at["requests decoding"] == pytest.approx(-math.log(2))
    assert at["remainder"] == pytest.approx(math.log(2))


def test_readme_table_and_its_place_in_a_file(run, tmp_path, capsys):
    lines = tables.readme_table(run).splitlines()
    assert len(lines) == 2 + len(truth.ARMS) * len(truth.LOADS)
    assert lines[2] == "| Baseline | 1 | 40.4 | – | 0.10 | – | 22.3 |"
    assert lines[8] == "| MTP, width 2 | 1 | 52.5 | +30.0 % | 0.12 | 1.70 | 29.1 |"
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n")
    assert main(["readme", str(run.path), str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- measured: begin -->\n| arm |") and "old" not in text
    assert text.endswith("<!-- measured: end -->\nafter\n")
    readme.write_text("no markers")
    assert main(["readme", str(run.path), str(readme)]) == 1
    assert "measured: begin" in capsys.readouterr().err


def test_a_point_that_failed_everywhere_shows_its_status(run, tmp_path):
    folder = truth.write_run(tmp_path / "r")
    keep = [x for x in (folder / "results.jsonl").read_text().splitlines() if '"c": 32' not in x]
    failed = '{"arm":"ngram","block":1,"workload":"agent","load":"c32","c":32,"attempt":1,'
    keep.append(failed + '"status":"failed","reason":"x"}')
    (folder / "results.jsonl").write_text("\n".join(keep) + "\n")
    table = tables.readme_table(Run(folder))
    assert "| N-gram, width 4 | 32 | failed | – | – | – | – |" in table


def test_hostile_titles_stay_text():
    assert tables.readme.markdown_text("<b>|x\n") == "&lt;b>\\|x "


def test_an_empty_run_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(KvtopError, match="no point in results.jsonl yet"):
        tables.points(Run(tmp_path))

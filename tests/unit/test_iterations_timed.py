"""Recorded iterations of the synthetic run against its hand-made numbers, tables and charts."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from kvtop_lib import acceptance, figures, iterations, tables
from kvtop_lib.figures.timed import PARTS
from kvtop_lib.store import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_iterations as recorded_truth  # noqa: E402
import synthetic_run as truth  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic"))


@pytest.fixture(scope="module")
def recorded(run):
    return iterations.recorded(run)


def rows_of(chart) -> pd.DataFrame:
    """Data of a chart's first layer with data, as it is drawn."""
    spec = chart.to_dict()
    return pd.DataFrame(max(spec["datasets"].values(), key=len))


def ok_points():
    bad = {*truth.FAILED, *truth.INVALID}
    return [
        (a, b, c) for a, b in truth.order() for c in truth.LOADS if (a, b, c) not in bad
    ]  # fmt: skip


def test_every_good_point_has_its_iterations_of_the_window(recorded):
    found = recorded.groupby(["arm", "block", "c"]).size()
    assert set(found.index) == set(ok_points()) and set(found) == {recorded_truth.ITERATIONS}
    assert (recorded["at_s"] >= 0).all() and set(recorded["kv_tokens"]) == {1000}


def test_tokens_of_an_iteration_beside_its_time(recorded):
    work = iterations.work(recorded).set_index(["arm", "c"])
    for arm in truth.ARMS:
        for c in (1, 8):
            row, steps = work.loc[arm, c], [truth.iteration_s(arm, b, c) for b in (1, 2)]
            assert row.tokens == pytest.approx(c * truth.accept_len(arm))
            assert row.per_request == pytest.approx(truth.accept_len(arm))
            assert row.iteration_s == pytest.approx(sum(steps) / 2)
            assert row.tok_s == pytest.approx(2 * c * truth.accept_len(arm) / sum(steps))
    assert len(work.loc["mtp_w2", 1].lines) == 2


def test_parts_by_batch_and_width(recorded):
    split = iterations.split(recorded).set_index(["arm", "bs", "part"])["seconds"]
    step = sum(truth.iteration_s("mtp_w4", b, 8) for b in (1, 2)) / 2
    assert split["mtp_w4", 8, "draft"] == pytest.approx(0.20 * step)
    assert split["mtp_w4", 8, "schedule"] == pytest.approx(0.05 * step)  # receive and schedule
    assert split["mtp_w4", 8, "unmarked"] == pytest.approx(0.01 * step)
    assert split["mtp_w4", 8].sum() == pytest.approx(step)
    assert split["baseline", 8, "verify"] == 0 < split["baseline", 8, "forward"]
    assert set(iterations.PART_GROUPS) == set(iterations.ORDER) == set(PARTS) - {"unmarked"}


def test_course_over_time(recorded):
    course = iterations.over_time(recorded[recorded["arm"] == "baseline"], bin_s=1000)
    row = course[course["c"] == 8].iloc[0]
    assert (row.running, row.queued) == (8, 1)
    assert row.kv_use == pytest.approx(sum(range(1, 11)) / 10 / 10)


def test_timeline(recorded):
    line = iterations.timeline(recorded, "mtp_w2", 1, 0, 1000)
    step = truth.iteration_s("mtp_w2", 1, 1)
    first = line[line["i"] == 0]
    assert list(first["part"]) == ["schedule", "draft", "verify", "draft-extend", "post-process"]
    assert first["start_s"].iloc[0] == pytest.approx(0)
    assert first["end_s"].iloc[-1] == pytest.approx(0.99 * step)
    assert line.groupby("i")["start_s"].min()[3] == pytest.approx(3 * step)
    assert iterations.timeline(recorded.iloc[:0]).empty


def test_acceptance_by_source_and_width(recorded):
    source = acceptance.by_source(recorded).set_index(["arm", "c", "source"])
    assert "baseline" not in source.index.get_level_values("arm")
    assert source.accept_len["mtp_w2", 1, "mtp"] == pytest.approx(1.7)
    assert source.accept_len["ngram", 8, "ngram"] == pytest.approx(1.3)
    assert source.steps["mtp_w4", 8, "mtp"] == 2 * 8 * 10 and set(source.share) == {1.0}
    width = acceptance.by_width(recorded).set_index(["arm", "c", "width"])
    assert width.accept_len["mtp_w4", 8, 4] == pytest.approx(2.4)


def test_two_sources_and_widths_in_one_batch_are_told_apart():
    row = {"arm": "a", "c": 2, "mode": "verify", "bs": 2, "width": 4}
    rows = pd.DataFrame(
        [
            {**row, "accepted": [3, 0], "source": ["ngram", "mtp"], "widths": [4, 2]},
            {**row, "accepted": [1, 1], "source": ["mtp", "mtp"], "widths": None},
        ]
    )
    source = acceptance.by_source(rows).set_index("source")
    assert source.accept_len["ngram"] == 4 and source.accept_len["mtp"] == pytest.approx(1 + 2 / 3)
    assert source.share["mtp"] == 0.75
    width = acceptance.by_width(rows).set_index("width")
    assert (width.steps[2], width.steps[4]) == (1, 3)
    assert width.accept_len[4] == pytest.approx(1 + 5 / 3)


def test_by_turn_and_context(run):
    turn = acceptance.by_turn(run).set_index(["arm", "turn"])
    assert turn.accept_len["mtp_w2", 0] == pytest.approx(1.7)
    context = acceptance.by_context(run, edges=(0, 64, 512))
    assert set(context["context"]) == {64}  # all prompts have 100 tokens


def test_golden_marks_are_those_of_the_published_files():
    golden = acceptance.golden().set_index(["model", "thinking", "width"])["accept_len"]
    assert golden["qwen3.5-397b-a17b-nvfp4", "off", 9] == 4.71
    assert golden["glm-5.2-fp8", "on", 2] == 1.84 and len(golden) == 24
    assert acceptance.golden()["source"].str.startswith("https://").all()


def test_charts_draw_what_the_tables_say(run, recorded):
    titles = tables.titles(run)
    work = tables.titled(iterations.work(recorded), run)
    drawn = rows_of(figures.tokens_and_time(work, titles)).set_index(["arm", "c"])
    assert drawn.tokens["mtp_w4", 8] == pytest.approx(8 * 2.4)
    seconds = iterations.work(recorded).set_index(["arm", "c"]).iteration_s["mtp_w4", 8]
    assert drawn.ms["mtp_w4", 8] == pytest.approx(1e3 * seconds)
    split = tables.titled(iterations.split(recorded), run)
    bars = rows_of(figures.split_by_batch(split))
    assert (bars["ms"] > 0).all()
    one = bars[(bars["arm"] == "mtp_w2") & (bars["bs"] == 1)]
    steps = [truth.iteration_s("mtp_w2", b, 1) for b in (1, 2)]
    assert one["ms"].sum() == pytest.approx(1e3 * sum(steps) / 2)
    course = tables.titled(iterations.over_time(recorded), run)
    lines = rows_of(figures.over_time(course, "queued", "queued", titles))
    assert set(lines["queued"]) == {1.0}
    line = iterations.timeline(recorded, "mtp_w2", 1, 0, 1000)
    assert len(rows_of(figures.timeline(line))) == len(line) == 50
    turns = tables.titled(acceptance.by_turn(run), run)
    chart = figures.accept_len_by(turns, "turn", "turn", titles)
    assert rows_of(chart)["accept_len"].max() == pytest.approx(2.4)
    own = tables.titled(acceptance.by_width(recorded), run)
    marks = rows_of(figures.beside_golden(own, acceptance.golden(), titles))
    assert len(marks) in (len(own), 24)


def test_a_run_without_a_recorder_has_empty_tables(tmp_path):
    none = iterations.recorded(Run(tmp_path))
    for table in (iterations.split, iterations.work, iterations.over_time, iterations.timeline):
        assert table(none).empty
    assert acceptance.by_source(none).empty and acceptance.by_width(none).empty
    assert acceptance.by_turn(Run(tmp_path)).empty and acceptance.by_context(Run(tmp_path)).empty
    assert not math.isnan(len(none))

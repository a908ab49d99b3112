"""The decision on the synthetic run, whose ratios, latencies and noise are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvtop_lib import decision
from kvtop_lib.decision import Target, decide, judge, ranges, recommend
from kvtop_lib.decision.__main__ import main
from kvtop_lib.decision.predict import widths
from kvtop_lib.params import load_arm, load_model
from kvtop_lib.stats import OPEN, load_axis
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic"))


@pytest.fixture(scope="module")
def found(run):
    return decide(run, {"TTFT p90 1.7 s": {"ttft_s_p90": 1.7}})


def arm(found: dict, name: str, target: int = 0) -> dict:
    return next(a for a in found["decisions"][target]["arms"] if a["arm"] == name)


def test_ranges_of_loads_follow_the_known_ratios(found):
    # half width of an interval: about 2 %; the true ratios are 1.3 1.25 1.2 1.1 1.0 0.9
    assert arm(found, "mtp_w2")["ranges"] == [
        {"verdict": "better", "from": 1, "to": 8},
        {"verdict": "indistinguishable", "from": 16, "to": 16},
        {"verdict": "worse", "from": 32, "to": 32},
    ]
    kinds = [(r["verdict"], r["from"], r["to"]) for r in arm(found, "mtp_w4")["ranges"]]
    assert kinds == [  # at 16 one of its two points is invalid: one block, no interval
        ("better", 1, 2), ("indistinguishable", 4, 4), ("worse", 8, 8), ("unknown", 16, 16),
        ("worse", 32, 32),
    ]  # fmt: skip
    point = arm(found, "mtp_w2")["points"][0]
    assert point["ratio"] == pytest.approx(1.3) and point["n"] == 2
    assert point["p_higher"] > 0.99 and len(point["lines"]) == 2


def test_the_crossover_is_where_the_ratio_is_one(found):
    turn = arm(found, "mtp_w2")["crossover"]
    assert turn["load"] == pytest.approx(16, rel=0.01) and turn["low"] < 16 < turn["high"]
    assert turn["low"] > 8 and turn["high"] < 32
    four = arm(found, "mtp_w4")["crossover"]  # its load with one block is left out
    assert four["load"] == pytest.approx(4, rel=0.01) and 2 < four["low"] < 4 < four["high"] < 8


def test_no_arm_is_the_default_but_each_is_named_with_its_reach(found):
    chosen = found["decisions"][0]["recommended"]
    assert chosen["arm"] == "baseline"
    assert chosen["up_to"] == {"mtp_w2": 16, "mtp_w4": 4, "ngram": 4}
    assert chosen["command"] is None and "another version" in chosen["no_command"]
    assert "no A/A pair" in found["noise_floor"]
    assert "comparisons were made" in found["multiplicity"]


def test_a_latency_target_comes_before_throughput(found):
    # TTFT p90 of the baseline: 0.2 0.3 0.4 0.8 1.6 4.0 s, of mtp_w2 a fifth more
    kinds = [(r["verdict"], r["from"], r["to"]) for r in arm(found, "mtp_w2", 1)["ranges"]]
    assert kinds == [("better", 1, 8), ("worse", 16, 16), ("missed", 32, 32)]
    with pytest.raises(KvtopError, match="no latency target on 'ttft'"):
        Target("x", {"ttft": 1})
    with pytest.raises(KvtopError, match="seconds above 0"):
        Target("x", {"ttft_s_p90": 0})


def test_it_is_written_as_strict_json_and_printed(run, tmp_path, capsys):
    out = tmp_path / "decision.json"
    assert main([str(run.path), "--out", str(out)]) == 0
    read = json.loads(out.read_text(), parse_constant=lambda x: pytest.fail(x))
    assert read["decisions"][0]["recommended"]["arm"] == "baseline"
    assert "indistinguishable" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 1 and "error: " in capsys.readouterr().err


def test_the_cost_model_of_the_run_is_tested_on_the_other_half(found):
    model = found["cost_model"]
    assert model["fitted"] and model["held_out_points"] > 10
    assert {p["arm"] for p in model["predicted"]} == {"mtp_w2", "mtp_w4", "ngram"}


def test_published_formulae_by_hand(found):
    """Width 4: 14 of 21 tried drafts are accepted; 0.9 c requests decode at c lanes."""
    rows = {(r["arm"], r["c"]): r for r in found["cost_model"]["formulae"]}
    assert len(rows) == 18 and ("mtp_w4", 16) in rows, "one of its two points there is ok"
    row = rows["mtp_w4", 1]
    assert row["alpha"] == pytest.approx(2 / 3)
    tokens = 1 + 2 / 3 + 4 / 9 + 8 / 27
    assert row["leviathan"] == pytest.approx(tokens / (1 + 3 * row["cost"]))
    price = found["cost_model"]["seconds"]
    one = price["floor"] + 0.9 * price["verified"]
    four = price["floor"] + 0.9 * (4 * price["verified"] + 3 * price["drafted"])
    assert row["goodput"] == pytest.approx(tokens * one / four)
    assert row["model"] == pytest.approx(2.4 * one / four)
    assert row["measured"] == pytest.approx(truth.RATIO["mtp_w4"][1])


def test_an_arm_whose_width_changes_has_no_width_for_a_formula():
    draft = {
        "a": {"method": "none", "width": 1},
        "b": {"method": "mtp", "width": 4, "widths": [1, 2, 4], "policy": "goodput"},
        "c": {"method": "mtp", "width": 2, "widths": [1, 2], "policy": "fixed:1"},
        "d": {"method": "mtp", "width": 4},
    }
    found = widths({"arms": {k: {"draft": v} for k, v in draft.items()}})
    assert np.isnan(found.pop("b")) and found == {"a": 1, "c": 1, "d": 4}


def judged(*rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["arm", "c", "ratio", "verdict"])


def test_the_default_is_the_arm_that_never_loses_and_gains_most():
    table = judged(
        ("a", 1, 1.3, "better"), ("a", 8, 1.2, "better"),
        ("b", 1, 1.6, "better"), ("b", 8, 1.0, "indistinguishable"),
        ("d", 1, 1.9, "better"), ("d", 8, 0.9, "worse"),
        ("baseline_aa", 1, 1.9, "better"), ("baseline_aa", 8, 1.9, "better"),
    )  # fmt: skip
    chosen = recommend(table)
    assert chosen["arm"] == "b" and chosen["up_to"] == {"d": 1}  # log 1.6 > log 1.3 + log 1.2
    level = recommend(judged(("a", 1, 1.0, "indistinguishable")))
    assert level["arm"] == "baseline" and "no arm is better" in level["reason"]
    one = recommend(judged(("a", 1, 1.5, "unknown")))
    assert one["arm"] == "baseline" and "one block and no A/A pair" in one["reason"]
    assert ranges(table[table.arm == "d"]) == [
        {"verdict": "better", "from": 1, "to": 1}, {"verdict": "worse", "from": 8, "to": 8},
    ]  # fmt: skip


def test_rates_and_lanes_are_not_on_one_axis():
    loads = ["c4", "r0.50", "r2.00-gamma0.25", "steps-1.00x30"]
    frame = pd.DataFrame({"load": loads, "c": [4, None, None, None], "workload": "w"})
    axis = load_axis(frame)
    assert axis.c.tolist() == [4, 0.5, 2]
    assert axis.workload.tolist() == ["w", f"w, poisson{OPEN}", f"w, gamma0.25{OPEN}"]


def test_a_command_says_what_the_arm_drafts():
    manifest = {
        "arms": {"mtp_w2": load_arm("mtp_w2").model_dump(mode="json")},
        "model": load_model("smollm2-mtp").model_dump(mode="json"),
    }
    text = decision.server_command_text(manifest, "mtp_w2")
    assert "--speculative-num-draft-tokens 2" in text and "KVTOP_SGLANG=1" in text
    with pytest.raises(KvtopError, match="no parameters of arm 'x'"):
        decision.server_command_text(manifest, "x")


def test_an_arm_that_never_drafts_is_judged_and_nobodys_default(tmp_path):
    run = Run(truth.write_run(tmp_path / "r"))
    file = run.path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["arms"]["ngram"] = {"draft": {"method": "none"}}  # both are better at low loads
    manifest["arms"]["mtp_w2"] = {"draft": {"method": "mtp", "policy": "fixed:1"}}
    file.write_text(json.dumps(manifest))
    found = decide(Run(run.path))
    assert found["decisions"][0]["recommended"]["up_to"] == {"mtp_w4": 4}
    assert arm(found, "mtp_w2")["ranges"][0] == {"verdict": "better", "from": 1, "to": 8}


def test_a_run_without_a_baseline_has_nothing_to_decide():
    points = pd.DataFrame([truth.line("mtp_w2", 1, 1) | {"line": 1}])
    with pytest.raises(KvtopError, match="nothing to compare with"):
        judge(points)

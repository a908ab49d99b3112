"""The time left of a run: the plan, corrected by what finished steps of the same kind took."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtop_lib import graph, plan
from kvtop_lib.params import Profile

PROFILE = Profile(
    id="p", title="P", model="m", workload="w", arms=["baseline", "x"], loads=[1, 8], blocks=2,
    burn_in_s=1, warmup_s=2, window_s=30, drain_s=10, timeout_s=9,
)  # fmt: skip
STEPS = {step.name: step for step in graph.steps(PROFILE)}
BLOCK_S = plan.LAUNCH_S + 2 * (1 + 2 + 30 + 5)
ANALYSES_S = dict.fromkeys(("30_acceptance", "40_iterations", "50_decision"), plan.ANALYSIS_S)


def finish(run: Path, name: str, took_s: float | None) -> None:
    """A step that is done; without a time one that went on after an interruption."""
    step = STEPS[name]
    (run / "keys").mkdir(exist_ok=True)
    (run / "keys" / f"{step.key}.key").write_text("k\n")
    step.target(run).parent.mkdir(parents=True)
    step.target(run).write_text("{}")
    step.target(run).with_suffix(".key").write_text(step.wanted(run) + "\n")
    if took_s is not None:
        step.note_time(run, took_s)


def test_nothing_measured_leaves_the_plan(tmp_path):
    blocks = dict.fromkeys(("baseline/b1", "x/b1", "x/b2", "baseline/b2"), BLOCK_S)
    deploys = dict.fromkeys(("baseline/deploy", "x/deploy"), plan.DEPLOY_S)
    assert graph.left_s(PROFILE, tmp_path) == deploys | blocks | ANALYSES_S


def test_finished_steps_correct_those_of_their_kind(tmp_path):
    finish(tmp_path, "baseline/deploy", 1.5 * plan.DEPLOY_S)
    finish(tmp_path, "baseline/b1", BLOCK_S / 2)
    finish(tmp_path, "x/b1", BLOCK_S)
    left = graph.left_s(PROFILE, tmp_path)
    blocks = {"x/b2": 0.75 * BLOCK_S, "baseline/b2": 0.75 * BLOCK_S}
    assert left == pytest.approx({"x/deploy": 1.5 * plan.DEPLOY_S} | blocks | ANALYSES_S)


def test_what_is_not_done_or_was_not_done_in_one_go_corrects_nothing(tmp_path):
    finish(tmp_path, "baseline/b1", None)
    finish(tmp_path, "x/b1", 3 * BLOCK_S)
    assert graph.left_s(PROFILE, tmp_path)["x/b2"] == pytest.approx(3 * BLOCK_S)
    (tmp_path / "keys" / "x.key").write_text("another\n")
    assert graph.left_s(PROFILE, tmp_path)["x/b1"] == BLOCK_S

"""The plan of a run: balanced order, sizes by arithmetic, and the page made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtop_lib import plan
from kvtop_lib.params import Profile, list_names, load_profile

ROOT = Path(__file__).parents[2]


def profile(**more) -> Profile:
    base = {
        "id": "p", "title": "P", "model": "m", "workload": "w", "arms": ["baseline", "x", "y"],
        "loads": [1, 8], "blocks": 2, "seed": 5, "burn_in_s": 1, "warmup_s": 2, "window_s": 30,
        "drain_s": 10, "timeout_s": 9,
    }  # fmt: skip
    return Profile(**{**base, **more})


def test_a_pair_of_blocks_is_a_row_and_its_reverse():
    assert plan.order("ABC", 1) == list("ABC") and plan.order("ABC", 2) == list("CBA")
    assert plan.order("A", 3) == ["A"]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 10])
def test_the_order_is_balanced(n):
    arms = list("ABCDEFGHIJ"[:n])
    for pair in range(n):  # in each pair the mean position is the same for every arm
        rows = [plan.order(arms, 2 * pair + 1), plan.order(arms, 2 * pair + 2)]
        assert {sum(row.index(a) for row in rows) for a in arms} == {n - 1}
    square = [plan.order(arms, 2 * pair + 1) for pair in range(n)]
    for position in range(n):  # over n pairs every arm once in every position
        assert sorted(row[position] for row in square) == arms


def test_lifetimes_say_order_seed_and_loads_before_anything_runs():
    p = profile(only={"y": [8]})
    found = plan.lifetimes(p)
    assert [(x["arm"], x["block"]) for x in found] == [
        ("baseline", 1), ("x", 1), ("y", 1), ("y", 2), ("x", 2), ("baseline", 2),
    ]  # fmt: skip
    assert [x["seed"] for x in found] == [5, 5, 5, 6, 6, 6]  # the block's, never the arm's
    assert found[0]["loads"] == ["c1", "c8"] and found[2]["loads"] == ["c8"]
    assert found[2]["expected_s"] == plan.LAUNCH_S + 1 + 2 + 30 + 5
    assert [x["position"] for x in plan.plan(p)["lifetimes"]] == [1, 2, 3, 4, 5, 6]


def test_a_longer_run_begins_as_the_shorter_one():
    short, long = (plan.lifetimes(profile(blocks=n)) for n in (3, 6))
    assert long[: len(short)] == short


def test_size_by_hand():
    s = plan.size(profile(only={"y": [8]}))
    assert (s.deploys, s.blocks, s.points) == (3, 6, 2 * (2 + 2 + 1))
    fixed = 3 * plan.DEPLOY_S + 6 * plan.LAUNCH_S + len(plan.ANALYSES) * plan.ANALYSIS_S
    assert s.total_s == fixed + 10 * 38
    assert s.window_share == pytest.approx(300 / s.total_s)
    longer = profile(only={"y": [8]}, windows={8: 50})  # six of the ten points are at 8
    assert plan.size(longer).total_s == s.total_s + 6 * 20
    assert plan.size(longer).window_s == 300 + 6 * 20
    assert [x["expected_s"] for x in plan.lifetimes(longer)[1:3]] == [
        plan.LAUNCH_S + 38 + 58, plan.LAUNCH_S + 58,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ({"z": [8]}, "'z' is not an arm"),
        ({"baseline": [8]}, "'baseline' is not an arm of this profile to be restricted"),
        ({"x": [4]}, "'x' needs some of the profile's loads"),
        ({"x": []}, "'x' needs some of the profile's loads"),
    ],
)
def test_a_restriction_that_does_not_fit_is_refused(only, said):
    with pytest.raises(ValueError, match=said):
        profile(only=only)


def test_profiles_keep_the_time_that_they_promise():
    minutes = {n: plan.size(load_profile(n)).total_s / 60 for n in list_names(Profile)}
    limits = {"quick": 15, "reproduce": 40, "full": 90, "thorough": 150}
    assert {n: minutes[n] for n, most in limits.items() if minutes.get(n, 0) > most} == {}
    assert plan.size(load_profile("full")).window_share >= 0.45


def test_the_page_is_made_from_the_profiles(capsys):
    assert plan.main(["--docs"]) == 0
    made = capsys.readouterr().out
    assert made == (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8"), (
        "make it again: python -m kvtop_lib.plan --docs > docs/profiles.md"
    )


def test_the_command_prints_the_order_and_refuses_an_unknown_profile(capsys):
    assert plan.main(["test"]) == 0
    out = capsys.readouterr().out
    assert "| `test` |" in out and "1 baseline b1: c1, c4" in out
    assert plan.main(["nothing"]) == 1
    assert "no profile 'nothing'" in capsys.readouterr().err

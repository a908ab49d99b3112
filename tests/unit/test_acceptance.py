"""Acceptance against counts made by hand and by replaying single verify steps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_help import add_point, request

from kvtop_lib import acceptance
from kvtop_lib.metrics.drafts import acceptance as pooled
from kvtop_lib.metrics.drafts import by_position, own_widths, pooled_hist
from kvtop_lib.store import Run, write_json


def _requests(*hists, width: int | None = None, status="ok") -> pd.DataFrame:
    rows = [
        {
            "status": status,
            "verify_steps": sum(h),
            "accepted_hist": h,
            "proposed_drafts": sum(h) * ((width or len(h)) - 1),
            "output_tokens": 1 + sum((i + 1) * n for i, n in enumerate(h)),
        }
        for h in hists
    ]
    return pd.DataFrame(rows)


def test_pooled_by_steps_not_a_mean_of_requests():
    # 10 steps with 9 drafts accepted, 90 steps with none: 9 of 100, not the mean of 0.9 and 0
    m = pooled(_requests([1, 9], [90, 0]))
    assert m["accept_len"] == pytest.approx(1.09) and m["accept_rate"] == pytest.approx(0.09)
    assert m["verify_steps"] == 100 and m["tokens_per_step"] == pytest.approx(1.09)


def test_positions_of_a_chain_of_three():
    # of 100 steps 80 took draft 1, 50 of them draft 2, 10 of those draft 3
    m = pooled(_requests([20, 30, 40, 10]))
    assert m["accept_by_position"] == [0.8, 50 / 80, 10 / 50]
    assert m["accept_len"] == pytest.approx(1 + (30 + 80 + 30) / 100)
    assert m["accept_rate"] == pytest.approx(140 / 300)


def test_proposed_is_counted_not_assumed_from_the_histogram():
    # no step took the third draft, so the histogram is short; three were proposed all the same
    assert pooled(_requests([5, 5], width=4))["accept_rate"] == pytest.approx(5 / 30)


def test_drafts_behind_the_stop_are_not_delivered():
    r = _requests([0, 10]).assign(output_tokens=20)  # 1 + 20 accepted, the last one cut off
    assert (pooled(r)["accept_len"], pooled(r)["tokens_per_step"]) == (2.0, 1.9)


def test_without_drafting_and_for_failures_there_is_no_acceptance():
    none = _requests([1, 1]).assign(accepted_hist=None, verify_steps=None)
    for r in (none, _requests([1, 1], status="truncated")):
        assert set(pooled(r).values()) == {None}


steps = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@given(st.lists(steps, min_size=1, max_size=4))
def test_histograms_say_what_single_steps_say(requests):
    hists = [np.bincount(s).tolist() for s in requests]
    flat = [n for s in requests for n in s]
    m = pooled(_requests(*hists))
    assert m["accept_len"] == pytest.approx(1 + np.mean(flat))
    # a slow walk over every draft of every step
    tried, taken = {}, {}
    for n in flat:
        for i in range(1, max(flat) + 1):
            if n >= i - 1:
                tried[i] = tried.get(i, 0) + 1
                taken[i] = taken.get(i, 0) + (n >= i)
    assert by_position(pooled_hist(hists)) == pytest.approx([taken[i] / tried[i] for i in tried])


@pytest.fixture
def run(tmp_path) -> Run:
    run, times = Run(tmp_path), [(1.0, 1), (2.0, 20)]
    add_point(run, "baseline", 1, [request(times)])
    late, broken = {"phase": "warmup"}, {"status": "truncated"}
    for block, hist in ((1, [2, 8]), (2, [6, 4])):
        rows = [
            request(times, hist),
            request(times, [9, 0], **late),
            request(times, [9, 0], **broken),
        ]
        add_point(run, "mtp", 1, rows, block=block)
    add_point(run, "mtp", 4, [request(times, [1, 2, 1])])
    run.append_result(
        {"arm": "mtp", "block": 1, "workload": "agent", "load": "c8", "c": 8, "attempt": 1}
        | {"status": "failed", "reason": "no server"}
    )
    return run


def test_by_load_pools_blocks_and_takes_only_good_requests_of_the_window(run):
    t = acceptance.by_load(run).set_index(["arm", "c"])
    assert list(t.index) == [("mtp", 1), ("mtp", 4)]
    assert t.accept_len["mtp", 1] == pytest.approx(1 + 12 / 20)
    assert (t.requests["mtp", 1], t.blocks["mtp", 1], t.lines["mtp", 1]) == (2, 2, [2, 3])
    assert t.accept_len["mtp", 4] == pytest.approx(2.0)


def test_by_draft_position(run):
    t = acceptance.by_draft_position(run)
    rows = t[t.c == 4][["position", "accepted", "steps"]].values.tolist()
    assert rows == [[1, 0.75, 4], [2, pytest.approx(1 / 3), 3]]


def test_by_request(run):
    t = acceptance.by_request(run)
    assert sorted(t.accept_len) == pytest.approx([1.4, 1.8, 2.0])


def test_a_run_without_drafting_has_empty_tables(tmp_path):
    run = Run(tmp_path)
    add_point(run, "baseline", 1, [request([(1.0, 1), (2.0, 5)])])
    for table in (acceptance.by_load, acceptance.by_draft_position, acceptance.by_request):
        assert table(run).empty and "arm" in table(run)
    assert not math.isnan(len(acceptance.by_load(Run(tmp_path / "none"))))


# (width, accepted) of single steps: what was proposed differs, the server counts 3 for each
STEPS = {"a": [(4, 3), (4, 1), (2, 1), (1, 0)], "b": [(2, 0), (4, 0), (4, 2)]}


def _recorded(steps=STEPS) -> pd.DataFrame:
    """Iterations with the n-th step of every request that has one; one whose result is lost."""
    rows = [{"mode": "prefill", "bs": 2, "requests": ["a", "b"]}]
    for n in range(4):
        there = [r for r in steps if len(steps[r]) > n]
        widths, accepted = ([steps[r][n][k] for r in there] for k in (0, 1))
        rows.append(
            {"mode": "verify", "bs": len(there), "width": max(widths), "requests": there}
            | {"widths": widths, "accepted": accepted}
        )
    rows.append({"mode": "verify", "bs": 1, "width": 4, "requests": ["z"]})
    frame = pd.DataFrame(rows)
    return frame.astype(object).where(frame.notna(), None)


def _counted() -> pd.DataFrame:
    return _requests([1, 2, 0, 1], [2, 0, 1], width=4).assign(response_id=["a", "b"])


def test_with_changing_widths_only_what_was_proposed_counts():
    m = pooled(own_widths(_counted(), _recorded()))
    # draft 1 was proposed in 6 steps and held in 4; 2 in 3 of these, held in 2; 3 in 2, held in 1
    assert m["accept_by_position"] == [4 / 6, 2 / 3, 1 / 2]
    assert m["accept_rate"] == 7 / (3 + 3 + 1 + 1 + 3 + 3)
    assert m["accept_len"] == 1 + 7 / 7 and m["verify_steps"] == 7


@pytest.mark.parametrize("recorded", [None, {"a": STEPS["a"], "b": STEPS["b"][:2]}])
def test_with_changing_widths_that_were_not_recorded_nothing_is_claimed(recorded):
    iterations = None if recorded is None else _recorded(recorded)
    m = pooled(own_widths(_counted(), iterations, (1, 2, 4)))
    assert m["accept_rate"] is None and m["accept_by_position"] is None
    assert m["accept_len"] == 2.0


def test_one_width_needs_no_record():
    for widths in ((), (4,)):
        assert own_widths(_counted(), None, widths).equals(_counted())
    steps = {"a": [(4, 3), (4, 1), (4, 1), (4, 0)], "b": [(4, 0), (4, 0), (4, 2)]}
    assert own_widths(_counted(), _recorded(steps)).equals(_counted())


def test_positions_of_a_run_with_changing_widths(tmp_path):
    run, times = Run(tmp_path), [(1.0, 1), (2.0, 20)]
    hists = {"a": [1, 2, 0, 1], "b": [2, 0, 1, 0]}
    rows = [request(times, hist, response_id=name) for name, hist in hists.items()]
    for block in (1, 2):  # in the second one the width stayed at 4
        add_point(run, "mixed", 1, rows, block=block)
    add_point(run, "unknown", 1, rows)
    points = run.results().to_dict("records")
    _recorded().to_parquet(run.folder(points[0]) / "iterations.parquet")
    write_json(run.folder(points[2]) / "recording.json", {"widths": [1, 2, 4]})
    t = acceptance.by_draft_position(run)
    assert set(t["arm"]) == {"mixed"}
    # block 1 as above; block 2 of 7 steps: 4 took draft 1, 2 of them draft 2, 1 of them draft 3
    assert t["steps"].tolist() == [6 + 7, 3 + 4, 2 + 2]
    assert t["accepted"].tolist() == [8 / 13, 4 / 7, 2 / 4]
    loads = acceptance.by_load(run).set_index("arm")
    assert loads["accept_rate"]["mixed"] == 14 / (14 + 21)
    assert math.isnan(loads["accept_rate"]["unknown"]) and loads["accept_len"]["unknown"] == 2.0

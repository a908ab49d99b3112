"""Which sessions a point plays, and when its lanes start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.params import load_profile, load_workload
from kvtop_lib.replay import Plan, PoolExhausted, SessionPool
from kvtop_lib.replay.lanes import lane_starts
from kvtop_lib.terms import KvtopError

LOADS = [1, 2, 4, 8, 16, 32]


def _sessions(n: int) -> list:
    return [SimpleNamespace(id=f"s{i:04}") for i in range(n)]


def _all(pool: SessionPool, c: int) -> list[str]:
    part = pool.slice(c)
    return [part.take().id for _ in range(len(part))]


@given(st.permutations(LOADS), st.integers(0, 5))
def test_no_session_is_given_to_two_loads_and_the_order_of_points_plays_no_part(order, seed):
    pool = SessionPool(_sessions(250), order, seed)
    by_load = {c: _all(pool, c) for c in order}
    used = [s for ids in by_load.values() for s in ids]
    assert sorted(used) == [s.id for s in _sessions(250)]
    again = SessionPool(list(reversed(_sessions(250))), LOADS, seed)
    assert by_load == {c: _all(again, c) for c in LOADS} | {}
    assert all(len(ids) >= c for c, ids in by_load.items())


def test_the_seed_decides_the_order():
    first = _all(SessionPool(_sessions(250), LOADS, 1), 8)
    assert first != _all(SessionPool(_sessions(250), LOADS, 2), 8)
    assert first != sorted(first)


def test_a_load_that_takes_less_leaves_the_others_alone():
    a, b = (SessionPool(_sessions(250), LOADS, 1) for _ in range(2))
    a.slice(1).take()
    assert _all(a, 2) == _all(b, 2)


def test_an_exhausted_slice_says_what_to_do():
    part = SessionPool(_sessions(3), [2], 1).slice(2)
    for _ in range(3):
        part.take()
    with pytest.raises(PoolExhausted, match="all 3 sessions of load c2 were used .* more sessions"):
        part.take()


def test_too_few_sessions_name_the_number_that_is_enough():
    with pytest.raises(KvtopError, match=r"load c8 gets 6 of .* at least \d+ sessions") as e:
        SessionPool(_sessions(40), LOADS, 1)
    need = int(str(e.value).split("at least ")[2].split()[0])
    assert need > 40
    SessionPool(_sessions(need), LOADS, 1)


def test_repeated_ids_are_refused():
    with pytest.raises(KvtopError, match="ids repeat"):
        SessionPool([*_sessions(3), SimpleNamespace(id="s0001")], [1], 1)


def test_shares_can_be_given():
    pool = SessionPool(_sessions(100), [1, 2], 1, shares={1: 1, 2: 3})
    assert [len(part) for part in pool] == [25, 75]


@given(st.integers(1, 64), st.floats(0, 20), st.floats(0, 20), st.integers(0, 9))
def test_all_lanes_have_started_when_the_burn_in_ends(c, burn_in_s, stagger_s, seed):
    plan = Plan(burn_in_s, 1, 1, 1, 1, stagger_s=stagger_s)
    starts = lane_starts(c, plan, seed)
    assert starts == lane_starts(c, plan, seed)
    assert starts == sorted(starts) and len(starts) == c
    assert 0 <= starts[0] and starts[-1] <= min(burn_in_s, stagger_s)


def test_phases_by_the_time_of_sending():
    plan = Plan(2, 3, 10, 5, 1)
    at = [0, 1.99, 2, 4.99, 5, 14.99, 15, 99]
    phases = "burn_in burn_in warmup warmup window window drain drain".split()
    assert [plan.phase(t) for t in at] == phases
    assert (plan.w0_s, plan.w1_s) == (5, 15)


def test_a_plan_takes_timing_from_the_profile_and_pace_from_the_workload():
    profile, workload = load_profile("test"), load_workload("agent")
    plan = Plan.of(profile, workload)
    assert (plan.window_s, plan.timeout_s) == (profile.window_s, profile.timeout_s)
    assert (plan.output, plan.stagger_s) == (workload.output, workload.stagger_s)


@pytest.mark.parametrize("wrong", [{"window_s": 0}, {"timeout_s": -1}, {"burn_in_s": -1}])
def test_a_plan_that_cannot_be_is_refused(wrong):
    times = {"burn_in_s": 1, "warmup_s": 1, "window_s": 1, "drain_s": 1, "timeout_s": 1}
    with pytest.raises(KvtopError, match=next(iter(wrong))):
        Plan(**{**times, **wrong})

"""Which sessions a point plays, and when its lanes start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.params import OpenLoad, load_profile, load_workload
from kvtop_lib.replay import Plan, PoolExhausted, SessionPool
from kvtop_lib.replay.arrivals import arrival_times
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_s": 0},
        {"timeout_s": -1},
        {"burn_in_s": -1},
        {"cancel_share": 1.1},
        {"cancel_within_s": 0},
        {"think_cap_s": 0},
        {"start": "last_turn"},
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong):
    times = {"burn_in_s": 1, "warmup_s": 1, "window_s": 1, "drain_s": 1, "timeout_s": 1}
    with pytest.raises(KvtopError, match=next(iter(wrong))):
        Plan(**{**times, **wrong})


POISSON, STEADY = OpenLoad(rate=2), OpenLoad(rate=1, arrivals="constant")
RECORDED = OpenLoad(arrivals="trace", time_scale=0.5)


def test_an_open_load_gets_as_many_sessions_as_it_starts_and_lanes_share_the_rest():
    loads = [1, 4, POISSON, STEADY]
    pool, again = (
        SessionPool(_sessions(200), order, 3, until_s=20) for order in (loads, loads[::-1])
    )
    parts = {part.name: [part.take().id for _ in range(len(part))] for part in pool}
    assert parts == {p.name: [p.take().id for _ in range(len(p))] for p in again}
    assert sorted(i for ids in parts.values() for i in ids) == [s.id for s in _sessions(200)]
    assert len(parts["r1.00-constant"]) == 20
    assert pool.slice(POISSON).times_s == tuple(arrival_times(POISSON, 3, 20))
    assert len(parts["r2.00"]) == len(pool.slice(POISSON).times_s)
    assert pool.slice(4).times_s == ()


def test_recorded_arrivals_take_a_run_of_sessions_in_recorded_order():
    sessions = [SimpleNamespace(id=f"s{i}", at_s=float(i // 2)) for i in range(40)][::-1]
    pool = SessionPool(sessions, [2, RECORDED], 1, until_s=5)
    part = pool.slice(RECORDED)
    # 0, 0, 1, 1, ... at twice the speed, before 5 s
    assert part.times_s == tuple(0.5 * (i // 2) for i in range(20))
    assert {part.take().at_s for _ in range(20)} == set(range(10))
    assert len(pool.slice(2)) == 20
    with pytest.raises(KvtopError, match="end 10 s after the first, and the point sends for 11 s"):
        SessionPool(sessions, [RECORDED], 1, until_s=11)
    with pytest.raises(KvtopError, match="has no recorded start time"):
        SessionPool(_sessions(9), [RECORDED], 1, until_s=1)


def test_too_few_sessions_for_a_rate_say_how_many_it_starts():
    with pytest.raises(KvtopError, match="starts 100 sessions in 100 s and 9 of the trace's 9"):
        SessionPool(_sessions(9), [STEADY], 1, until_s=100)
    mistyped = OpenLoad(arrivals="constant", rate=1e6)
    with pytest.raises(KvtopError, match="starts at least 1000000 sessions in 100 s"):
        SessionPool(_sessions(9), [mistyped], 1, until_s=100)
    with pytest.raises(KvtopError, match="say how long it sends"):
        SessionPool(_sessions(9), [STEADY], 1)
    with pytest.raises(KvtopError, match="made for loads c1, not for r1.00-constant"):
        SessionPool(_sessions(9), [1], 1).slice(STEADY)
    with pytest.raises(KvtopError, match="holds no session"):
        SessionPool([], [1], 1)


def test_think_time_is_scaled_and_capped():
    plan = Plan(1, 1, 1, 1, 1, think_factor=0.5, think_cap_s=3)
    assert [plan.think_s(t) for t in (0, 2, 6, 100)] == [0, 1, 3, 3]
    assert Plan(1, 1, 1, 1, 1).think_s(9) == 0


def test_the_share_of_aborted_requests_is_kept_and_seeded():
    plan = Plan(1, 1, 1, 1, 1, cancel_share=0.25, cancel_within_s=4)
    after = [plan.cancel_after_s(1, f"s{i}", i % 3) for i in range(4000)]
    assert after == [plan.cancel_after_s(1, f"s{i}", i % 3) for i in range(4000)]
    chosen = [a for a in after if a is not None]
    # four standard errors of a share, and of the mean of a uniform time
    assert abs(len(chosen) / 4000 - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert abs(sum(chosen) / len(chosen) - 2) < 4 * (4 / 12**0.5) / len(chosen) ** 0.5
    assert 0 <= min(chosen) and max(chosen) < 4
    assert after != [plan.cancel_after_s(2, f"s{i}", i % 3) for i in range(4000)]
    never = Plan(1, 1, 1, 1, 1)
    assert not any(never.cancel_after_s(1, f"s{i}", 0) for i in range(100))

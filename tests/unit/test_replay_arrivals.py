"""Arrival times against what their distributions say, and against tables."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvtop_lib.params import OpenLoad
from kvtop_lib.replay.arrivals import arrival_times, session_stamp, trace_times
from kvtop_lib.terms import KvtopError

LOADS = {
    "poisson": OpenLoad(rate=2),
    "bursty": OpenLoad(rate=2, arrivals="gamma", burstiness=0.25),
    "regular": OpenLoad(rate=2, arrivals="gamma", burstiness=4),
    "constant": OpenLoad(rate=2, arrivals="constant"),
    "steps": OpenLoad(arrivals="steps", steps=((1, 10), (4, 10))),
}


@given(st.sampled_from(sorted(LOADS)), st.integers(0, 99), st.floats(0.1, 50), st.floats(0, 50))
def test_times_depend_on_load_and_seed_alone_and_rise(name, seed, until_s, more_s):
    times = arrival_times(LOADS[name], seed, until_s)
    assert times == sorted(times) and all(0 <= t < until_s for t in times)
    longer = arrival_times(LOADS[name], seed, until_s + more_s)
    assert longer[: len(times)] == times
    assert all(t >= until_s for t in longer[len(times) :])


def test_another_seed_and_another_load_give_other_times():
    some = [arrival_times(load, seed, 50) for load in LOADS.values() for seed in (1, 2)]
    assert len({tuple(t) for t in some}) == len(some)


@pytest.mark.parametrize(
    ("name", "cv"), [("poisson", 1.0), ("bursty", 2.0), ("regular", 0.5), ("constant", 0.0)]
)
def test_rate_and_burstiness_are_what_was_asked(name, cv):
    times = np.array(arrival_times(LOADS[name], 7, 20_000))
    gaps = np.diff(times)
    # 40,000 intervals: the mean is within four standard errors, CV = 1 / sqrt(burstiness)
    assert abs(gaps.mean() - 0.5) <= 4 * 0.5 * cv / 200 + 1e-9
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_poisson_counts_and_intervals_have_their_distributions():
    counts = [len(arrival_times(LOADS["poisson"], seed, 10)) for seed in range(1000)]
    assert np.mean(counts) == pytest.approx(20, abs=4 * (20 / 1000) ** 0.5)
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, abs=0.2)
    gaps = np.diff(arrival_times(LOADS["poisson"], 3, 2000))
    assert stats.kstest(gaps, "expon", args=(0, 0.5)).pvalue > 1e-3


def test_constant_arrivals_are_exact():
    times = arrival_times(OpenLoad(rate=4, arrivals="constant"), 11, 100)
    assert len(times) == 400 and 0 <= times[0] < 0.25
    assert np.allclose(np.diff(times), 0.25, atol=1e-9)


def test_a_ramp_has_each_rate_in_its_step_and_keeps_the_last():
    load = OpenLoad(arrivals="steps", steps=((1, 10), (5, 20), (0.5, 1)))
    many = np.concatenate([arrival_times(load, seed, 50) for seed in range(400)])
    rate = np.histogram(many, [0, 10, 30, 50])[0] / np.array([10, 20, 20]) / 400
    # standard errors: sqrt(rate / (seconds x 400))
    assert rate == pytest.approx([1, 5, 0.5], abs=4 * (5 / 8000) ** 0.5)


def test_recorded_times_start_at_the_first_and_are_scaled():
    load = OpenLoad(arrivals="trace", time_scale=0.5)
    assert trace_times([100, 103, 103, 109], load, 1) == [0, 1.5, 1.5, 4.5]
    assert trace_times([100, 103], OpenLoad(arrivals="trace"), 1) == [0, 3]


def test_jitter_spreads_equal_stamps_only():
    load = OpenLoad(arrivals="trace", jitter_s=3)
    stamps = [0.0, *[3.0] * 200, 7.0]
    times = trace_times(stamps, load, 5)
    assert times == trace_times(stamps, load, 5) == sorted(times)
    assert times[0] == 0 and times[-1] == 7
    burst = np.array(times[1:-1])
    assert ((burst >= 3) & (burst < 6)).all() and len(set(burst)) == 200
    assert stats.kstest(burst, "uniform", args=(3, 3)).pvalue > 1e-3


@pytest.mark.parametrize("rate", [1e-6, 1e6])
@pytest.mark.parametrize("burstiness", [1e-6, 1e6])
def test_times_can_be_drawn_at_the_limits_of_a_load(rate, burstiness):
    load = OpenLoad(rate=rate, arrivals="gamma", burstiness=burstiness)
    times = arrival_times(load, 1, 10 / rate)
    assert times == sorted(times) and all(0 <= t < 10 / rate for t in times)
    if burstiness > 1:  # all but regular: an interval's CV is 0.001
        assert np.allclose(np.diff([0, *times]) * rate, 1, atol=0.01) and len(times) in (9, 10)


def test_a_trace_without_timestamps_says_so():
    assert session_stamp(SimpleNamespace(id="a", at_s=0.0)) == 0
    with pytest.raises(KvtopError, match="session 'b' has no recorded start time; replay"):
        session_stamp(SimpleNamespace(id="b", at_s=None))
    with pytest.raises(KvtopError, match="from the trace's timestamps"):
        arrival_times(OpenLoad(arrivals="trace"), 1, 10)

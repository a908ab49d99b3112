"""Loads of a profile: lanes and rates, their names, and wrong ones in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.params import OpenLoad, Profile, Workload, load_name, parse_load


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (8, "c8"),
        ("c8", "c8"),
        ("r0.5", "r0.50"),
        ({"rate": 0.5}, "r0.50"),
        ({"rate": 0.125}, "r0.125"),
        ("r2-constant", "r2.00-constant"),
        ("r0.50-gamma0.25", "r0.50-gamma0.25"),
        ({"rate": 1, "arrivals": "gamma", "burstiness": 2}, "r1.00-gamma2"),
        ({"arrivals": "steps", "steps": [[0.5, 30], [1, 20]]}, "steps-0.50x30-1.00x20"),
        ({"arrivals": "trace"}, "trace-x1"),
        ({"arrivals": "trace", "time_scale": 0.5, "jitter_s": 3}, "trace-x0.5-j3"),
    ],
)
def test_a_load_has_a_name(given, name):
    assert load_name(parse_load(given)) == name


@given(st.floats(1e-6, 1e5), st.sampled_from(["poisson", "constant", "gamma"]), st.floats(0.01, 50))
def test_a_name_of_a_rate_reads_back_as_its_load(rate, arrivals, burstiness):
    rate, burstiness = float(f"{rate:.6f}"), float(f"{burstiness:.3f}")
    load = OpenLoad(
        rate=rate, arrivals=arrivals, burstiness=burstiness if arrivals == "gamma" else None
    )
    assert parse_load(load.name) == load


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (0, "1 lane or more, not 0"),
        (True, "True is no load"),
        ("8", "'8' is no load; give lanes"),
        ("r0", "rate: Input should be from 0.000001 to 1,000,000"),
        ({"rate": 5e-13}, "5e-13} is no load: rate: Input should be from 0.000001"),
        ({"rate": 1e-200, "arrivals": "gamma", "burstiness": 1}, "rate: Input should be from"),
        ({"rate": 1, "arrivals": "gamma", "burstiness": 1e-200}, "burstiness: Input should be"),
        ({"rate": 1, "arrivals": "gamma", "burstiness": 1e308}, "burstiness: Input should be"),
        ({"rate": 1000001}, "rate: Input should be from"),
        ({"rate": float("inf")}, "rate: Input should be a finite number"),
        ({"arrivals": "steps", "steps": [[1, 9], [1e300, 9]]}, "steps: 1: 0: Input should be from"),
        ({"rate": 1, "burstiness": 2}, "poisson arrivals do not take burstiness"),
        ({"rate": 1, "arrivals": "gamma"}, "gamma arrivals need burstiness"),
        ({"rate": 1, "arrivals": "trace"}, "trace arrivals do not take rate"),
        ({"arrivals": "constant"}, "constant arrivals need rate"),
        ({"arrivals": "steps", "steps": []}, "steps arrivals need steps"),
        ({"arrivals": "steps", "steps": [3]}, "steps"),
        ({"rate": 1, "time_scale": 2}, "poisson arrivals do not take time_scale"),
        ({"rat": 1}, "rat"),
        ({1: 2}, "is no load"),
        (None, "None is no load"),
    ],
)
def test_a_wrong_load_is_one_sentence(wrong, said):
    with pytest.raises(ValueError) as e:
        parse_load(wrong)
    assert said in str(e.value) and "\n" not in str(e.value)


TIMES = {"burn_in_s": 1, "warmup_s": 1, "window_s": 9, "drain_s": 1, "timeout_s": 1}


def test_a_profile_mixes_lanes_and_rates_and_stays_what_it_was_with_lanes_only():
    names = {"id": "p", "title": "P", "model": "m", "arms": ["baseline"], "workload": "w"}
    profile = Profile(**names, **TIMES, loads=[1, "r0.50", {"rate": 2, "arrivals": "constant"}])
    assert profile.loads == [1, OpenLoad(rate=0.5), OpenLoad(rate=2, arrivals="constant")]
    assert profile.model_dump(mode="json")["loads"][1]["rate"] == 0.5
    assert Profile(**profile.model_dump(mode="json")) == profile
    with pytest.raises(ValueError, match="loads names one thing twice"):
        Profile(**names, **TIMES, loads=["r0.5", {"rate": 0.5}])


WORDS = {"id": "w", "title": "W", "max_output_tokens": 10}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fixed": {"input_tokens": 9, "output_tokens": 9}}, "set output: recorded"),
        ({"fixed": {"input_tokens": 9}, "output": "recorded"}, "output_tokens"),
        ({"think_cap_s": 3}, "set think_factor beside it"),
        ({"cancel_share": 1.5}, "cancel_share"),
        ({"start": "last_turn"}, "start"),
    ],
)
def test_a_workload_that_contradicts_itself_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Workload(**WORDS, **wrong)

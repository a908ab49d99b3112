"""Iteration time = decode time / verify steps, against servers with a known iteration."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_help import add_point, request

from kvtop_lib import iterations
from kvtop_lib.metrics.latency import arrivals, per_request
from kvtop_lib.store import Run


def _decode(iteration_s: float, accepted: list[int], start_s: float = 1.0) -> dict:
    """A request of a server whose every iteration takes the same time."""
    chunks, total = [(start_s, 1)], 1
    for i, n in enumerate(accepted, 1):
        total += 1 + n
        chunks.append((start_s + i * iteration_s, total))
    hist = [accepted.count(k) for k in range(max(accepted) + 1)] if any(accepted) else None
    return request(chunks, hist)


@settings(max_examples=30)
@given(st.floats(0.001, 1), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_a_constant_iteration_is_found_for_any_acceptance(iteration_s, accepted):
    r = _decode(iteration_s, accepted)
    chunks = pd.DataFrame(r["chunks"], columns=["recv_s", "tokens_total"]).assign(request=0)
    found = per_request(pd.DataFrame([{**r, "request": 0}]), arrivals(chunks))
    assert found["iteration_s"][0] == pytest.approx(iteration_s, rel=1e-6)


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run(tmp_path)
    add_point(run, "baseline", 1, [_decode(0.010, [0] * 20), _decode(0.010, [0] * 40)])
    add_point(run, "mtp", 1, [_decode(0.014, [1, 1, 0, 1] * 5)])
    add_point(run, "baseline", 8, [_decode(s, [0] * 10) for s in (0.02, 0.03, 0.04)])
    slow = _decode(0.9, [1, 1])
    add_point(run, "mtp", 8, [_decode(0.06, [1, 0] * 5), {**slow, "status": "timeout"}])
    add_point(run, "ngram", 4, [_decode(0.02, [1, 1]), request([(1.0, 5)], [1, 2])])
    return run


def test_by_load(run):
    t = iterations.by_load(run).set_index(["arm", "c"])
    assert t.iteration_s["baseline", 1] == pytest.approx(0.010)
    assert t.iteration_s["baseline", 8] == pytest.approx(0.03)
    assert t.iteration_p10_s["baseline", 8] == pytest.approx(0.022)
    assert t.iteration_s["mtp", 1] == pytest.approx(0.014)
    assert t.tokens_per_step["mtp", 1] == pytest.approx(1.75)
    assert t.requests["mtp", 8] == 1  # the one that timed out is not a slow iteration
    assert t.lines["mtp", 8] == [4]


def test_cost_and_gain_are_relative_to_the_baseline_at_the_same_load(run):
    t = iterations.by_load(run).set_index(["arm", "c"])
    assert t.cost["mtp", 1] == pytest.approx(1.4) and t.gain["mtp", 1] == pytest.approx(1.75)
    assert t.cost["mtp", 8] == pytest.approx(2.0) and t.gain["mtp", 8] == pytest.approx(1.5)
    assert t.cost["baseline", 8] == t.gain["baseline", 8] == pytest.approx(1.0)
    assert math.isnan(t.cost["ngram", 4])


def test_requests_whose_tokens_came_at_once_have_no_iteration_time(run):
    t = iterations.by_request(run)
    assert len(t[t.arm == "ngram"]) == 1
    assert list(t[t.arm == "ngram"].steps) == [pytest.approx(2)]


def test_an_empty_run(tmp_path):
    assert iterations.by_request(Run(tmp_path)).empty
    assert iterations.by_load(Run(tmp_path)).empty

"""First differences of outputs, on lists written by hand."""

import pytest

from kvtop_lib.engine.lossless import Output, compare
from kvtop_lib.stats import divergence, same_rate


def test_rate_place_and_gap_by_hand():
    reference = [[1, 2, 3, 4], [5, 6], [7, 8, 9], [1] * 10]
    other = [[1, 2, 9, 4], [5, 6], [0, 8, 9], [1] * 10]
    a, b = ([Output(tuple(x), "", "stop") for x in side] for side in (reference, other))
    positions = {d.prompt: d.position_tokens for d in compare(a, b).divergences}
    assert positions == {0: 2, 2: 0}
    found = divergence([len(x) for x in reference], positions, [-0.25, 0.75])
    assert (found["outputs"], found["diverged"], found["share"]) == (4, 2, 0.5)
    # compared: 3 tokens of the first, 2, 1 of the third, 10
    assert found["per_1000_tokens"] == pytest.approx(1000 * 2 / 16)
    assert found["position"]["p50"] == 1 and found["position"]["p90"] == pytest.approx(1.8)
    assert found["gap"]["p50"] == pytest.approx(0.5) and found["gaps"] == 2
    # Clopper and Pearson's interval of 2 in 4, from a table
    assert (found["low"], found["high"]) == pytest.approx((0.0676, 0.9324), abs=1e-4)


def test_outputs_that_never_part():
    found = divergence([4, 4, 4], {})
    assert (found["share"], found["low"], found["per_1000_tokens"]) == (0, 0, 0)
    assert found["position"] is None and found["gap"] is None
    assert found["high"] == pytest.approx(1 - 0.025 ** (1 / 3)), "three equal outputs prove little"
    assert divergence([], {})["share"] is None


def test_rates_are_told_apart_by_counting():
    assert same_rate((2, 20), (2, 20)) == pytest.approx(1)
    # Fisher's tea tasting: 3 of 4 against 1 of 4
    assert same_rate((3, 4), (1, 4)) == pytest.approx(34 / 70)
    assert same_rate((20, 20), (0, 20)) < 1e-6

"""The cost model recovers a known cost, and the published formulae give their printed values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvtop_lib import costmodel as cm
from kvtop_lib.terms import KvtopError

TRUE = cm.CostModel(floor=10e-3, verified=1e-3, kv=2e-6, drafted=0.5e-3, points=0)
LOADS = [1, 2, 4, 8, 16, 32]


def points(noise: float = 0.0) -> pd.DataFrame:
    rng, rows = np.random.default_rng(1), []
    for arm, width in (("baseline", 1), ("mtp_w2", 2), ("mtp_w4", 4)):
        for c in LOADS:
            at = {"verified": c * width, "kv": 300.0 * c + 50 * width, "drafted": c * (width - 1)}
            time = float(TRUE.iteration_s(**at)) * np.exp(rng.normal(0, noise))
            rows.append({"arm": arm, "c": c, "block": 1, "iteration_s": time, **at})
    return pd.DataFrame(rows)


def test_known_costs_are_recovered_and_the_other_half_is_predicted():
    model, held = cm.tested(points())
    assert (model.floor, model.verified, model.kv, model.drafted) == pytest.approx(
        (TRUE.floor, TRUE.verified, TRUE.kv, TRUE.drafted), rel=1e-6
    )
    assert model.points == len(held) == 9 and held.error.abs().max() < 1e-6
    model, held = cm.tested(points(noise=0.02))
    assert held.error.abs().median() < 0.05


def test_halves_hold_every_arm_and_reach_over_the_loads():
    train, held = cm.halves(points())
    for half in (train, held):
        assert set(half.arm) == {"baseline", "mtp_w2", "mtp_w4"}
        assert half.c.min() <= 2 and half.c.max() >= 16
    assert not set(train.index) & set(held.index)


def test_too_few_points_are_refused():
    with pytest.raises(KvtopError, match="do not fit 4 coefficients"):
        cm.fit(points().iloc[[0, 6, 12]])
    with pytest.raises(KvtopError, match="0 points do not fit 1 coefficients"):
        cm.tested(points().iloc[:0])  # no point of any arm is ok


def test_a_predicted_crossover_by_hand():
    # floor 8, 1 per row: at width 2 with 1.5 tokens a gain needs 1.5 * (8 + b) > 8 + 2 b, b < 8
    model = cm.CostModel(8.0, 1.0, 0.0, 0.0, 0)
    loads = np.array([1, 2, 4, 8, 16])
    ratio = model.ratio(loads, 2, 0.0, 1.5)
    assert ratio[0] == pytest.approx(1.5 * 9 / 10) and ratio[3] == pytest.approx(1.0)
    assert cm.crossing(loads, ratio) == pytest.approx(8)
    assert np.isnan(cm.crossing(loads[:3], ratio[:3]))


def test_published_formulae():
    # the paper's own example of equation 1: five tokens, one of which is free
    assert cm.expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert cm.expected_tokens(1.0, 3) == 4 and cm.expected_tokens(0.0, 3) == 1
    assert cm.leviathan(0.7, 1, 0.1) == pytest.approx(1.7 / 1.1)
    # without load-dependent cost the formula under load is the one without a batch
    free = cm.CostModel(1.0, 0.0, 0.0, 0.0, 0)
    assert cm.goodput_ratio(0.7, 3, [1, 64], 0.0, free) == pytest.approx(
        [cm.leviathan(0.7, 3, 0.0)] * 2
    )


def test_the_acceptance_rate_counts_drafts_that_were_tried():
    # 100 steps: 60 accept the first draft, 30 the second; 200 steps of a chain of one: 100
    assert cm.acceptance_rate([[0.6, 0.5], [0.5]], [100, 200]) == pytest.approx(
        (60 + 30 + 100) / (100 + 60 + 200)
    )
    assert cm.acceptance_rate([[0.0]], [10]) == 0 and cm.acceptance_rate([[1.0, 1.0]], [5]) == 1


def test_what_the_model_is_fitted_on():
    run = pd.DataFrame(
        {"arm": ["a", "b"], "workload": "w", "c": [4, 4], "block": 1, "width": [1, 2],
         "decoding_mean": [3.0, 3.5], "iteration_s_p50": [0.01, np.nan],
         "kv_use_mean": [0.1, 0.2]}
    )  # fmt: skip
    (row,) = cm.from_results(run, 1000).to_dict("records")
    assert (row["verified"], row["kv"], row["drafted"]) == pytest.approx((3.0, 100.0, 0.0))
    run = run.assign(iteration_s_p50=0.01)
    assert cm.from_results(run, 1000).verified.tolist() == pytest.approx([3.0, 7.0])

"""Verdicts, noise floor, multiplicity, crossover and rate search, against truths made by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from kvtop_lib import stats
from kvtop_lib.terms import KvtopError


def summary(*rows) -> pd.DataFrame:
    """Rows of (arm, c, n, ratio, low, high, p)."""
    columns = ["arm", "c", "n", "ratio", "low", "high", "p"]
    return pd.DataFrame(rows, columns=columns).assign(workload="w", df=4.0)


NAN = math.nan
FOUR = summary(
    ("baseline_aa", 1, 2, 1.02, 0.98, 1.06, 0.3),
    ("baseline_aa", 8, 2, 0.95, 0.91, 0.99, 0.04),
    ("mtp", 1, 2, 1.30, 1.20, 1.41, 0.001),
    ("mtp", 8, 2, 1.04, 1.01, 1.07, 0.02),
    ("mtp", 32, 2, 0.97, 0.90, 1.05, 0.4),
    ("mtp", 64, 2, 0.80, 0.75, 0.85, 0.001),
)


def test_a_difference_leaves_out_equal_and_is_larger_than_the_a_a_pairs():
    floor = stats.noise_floor(FOUR)
    assert floor.ratio == pytest.approx(1 / 0.95) and (floor.loads, floor.blocks) == (2, 2)
    assert (floor.covered, floor.judged) == (1, 2)
    found = stats.verdicts(FOUR, floor).tolist()
    assert found == ["none", "none", "higher", "none", "none", "lower"]  # 4 % is below the floor
    assert stats.verdicts(FOUR).tolist() == ["none", "lower", "higher", "higher", "none", "lower"]
    assert "5.3%" in str(floor) and "1 of its 2 intervals" in str(floor)


def test_one_block_is_judged_by_the_a_a_pair_alone_or_not_at_all():
    one = summary(
        ("baseline_aa", 8, 1, 1.03, NAN, NAN, NAN),
        ("mtp", 1, 1, 1.02, NAN, NAN, NAN),
        ("mtp", 8, 1, 0.72, NAN, NAN, NAN),
        ("mtp", 32, 1, 0.66, NAN, NAN, NAN),
    )
    floor = stats.noise_floor(one)  # one pair of launches: t of one degree of freedom
    assert floor.limit() == pytest.approx(12.7062 * math.log(1.03))  # a ratio of 1 / 1.456
    assert stats.verdicts(one, floor).tolist() == ["none", "none", "none", "lower"]
    alone = one[one.arm == "mtp"]
    floor = stats.noise_floor(alone)
    assert stats.verdicts(alone, floor).tolist() == ["unknown"] * 3
    assert "no A/A pair" in str(floor)
    assert stats.multiplicity(one) == "no comparison has an interval"


def test_multiplicity_in_words_with_holm_by_hand():
    # sorted .001 .001 .02 .04 .3 .4, times 6 5 4 3 2 1: .006 .006 .08 .12 .6 .6
    adjusted = stats.holm(FOUR.p)
    assert adjusted.tolist() == pytest.approx([0.6, 0.12, 0.006, 0.08, 0.6, 0.006])
    text = stats.multiplicity(FOUR)
    assert text.startswith("6 comparisons were made") and "about 0.3 of them" in text
    assert "4 do, 2 of them also" in text


def test_sign_probability_is_that_of_the_t_distribution():
    # log ratios 0.1 and 0.3: mean 0.2, standard error 0.1, one degree of freedom (Cauchy)
    r = pd.DataFrame(
        {"arm": "a", "workload": "w", "c": 1, "block": [1, 2], "ratio": np.exp([0.1, 0.3])}
    )
    s = stats.summarise(r).iloc[0]
    assert s.se == pytest.approx(0.1) and s.df == pytest.approx(1)
    assert s.p_higher == pytest.approx(0.5 + math.atan(2) / math.pi)
    assert s.p == pytest.approx(2 * (1 - s.p_higher))


def ratios(logs: dict[int, list[float]], arm: str = "a") -> pd.DataFrame:
    rows = [(arm, c, b, math.exp(x)) for c, xs in logs.items() for b, x in enumerate(xs, 1)]
    return pd.DataFrame(rows, columns=["arm", "c", "block", "ratio"]).assign(workload="w")


def only(logs: dict[int, list[float]]) -> stats.Crossover:
    return stats.crossovers(ratios(logs)).crossover.iloc[0]


def test_a_crossover_on_the_log_load_axis_by_hand():
    found = only({1: [0.3], 4: [0.1], 16: [-0.1]})  # halfway between 4 and 16: 8
    assert found.kind == "crosses" and found.load == pytest.approx(8)
    assert not found.known and "no interval" in str(found)
    # blocks that agree to the last digit: no noise, the interval is a point
    found = only({1: [0.3, 0.3], 4: [0.1, 0.1], 16: [-0.1, -0.1]})
    assert found.known and found.low == pytest.approx(8, rel=0.02)
    assert found.high == pytest.approx(8, rel=0.02)


def test_an_interval_of_a_crossover_by_hand():
    # one load pair, launches differ by 0.1 at both loads alike: se 0.05 everywhere, df 1
    loads = {1: [0.95, 1.05], 100: [-1.05, -0.95]}
    found = only(loads)
    assert found.load == pytest.approx(10)
    reach = 12.7062 * 0.05  # the log ratio falls by 2 over log 100
    assert found.low == pytest.approx(10 * math.exp(-reach / 2 * math.log(100)), rel=0.05)
    assert found.high == pytest.approx(10 * math.exp(reach / 2 * math.log(100)), rel=0.05)


def test_a_crossover_outside_the_measured_loads_is_censored():
    ahead, behind = only({1: [0.3, 0.3], 8: [0.1, 0.1]}), only({1: [-0.1, -0.1], 8: [-0.3, -0.3]})
    assert (ahead.kind, behind.kind) == ("above", "below")
    assert ahead.clear and math.isnan(ahead.load) and "ahead at all" in str(ahead)
    near = only({1: [0.29, 0.31], 2: [0.29, 0.31], 8: [-0.04, 0.06]})
    assert near.kind == "above" and near.high is None and near.low > 2
    assert "above 8" in str(near)
    assert only({1: [-0.1], 2: [0.1]}).kind == "several"
    assert stats.crossovers(ratios({8: [0.1]})).empty


class Served:
    """A server whose attainment falls from 1 at a known rate, with noise known per repeat."""

    def __init__(self, keeps: float, noise: tuple[float, ...] = (0.0,)) -> None:
        self.keeps, self.noise, self.asked = keeps, noise, []

    def __call__(self, rate: float, repeat: int) -> float:
        self.asked.append((rate, repeat))
        off = self.noise[repeat % len(self.noise)]
        return float(np.clip(1 - (rate / (self.keeps * (1 + off))) ** 8 * 0.05, 0, 1))


def test_the_highest_rate_is_found_within_the_tolerance():
    server = Served(3.7)
    found = stats.highest_rate(server, 0.95, 0.5, 16, tolerance=0.05, repeats=2)
    assert found.low <= 3.7 <= found.high and found.high / found.low <= 1.05
    assert found.rate == pytest.approx(3.7, rel=0.05)
    assert len(server.asked) == len(set(server.asked)) == found.measurements < 20
    assert "kept up to" in str(found)


def test_repeats_that_disagree_stay_inside_the_interval():
    found = stats.highest_rate(Served(4.0, (-0.2, 0.0, 0.25)), 0.95, 0.5, 16, tolerance=0.03)
    assert found.low == pytest.approx(3.2, rel=0.04) and found.low <= 3.2
    assert found.high == pytest.approx(5.0, rel=0.04) and found.high >= 5.0


def test_a_search_tells_of_a_range_that_is_too_small():
    low = stats.highest_rate(Served(0.1), 0.95, 0.5, 16)
    assert low.low == 0 and low.high == 0.5 and "not reached at 0.5" in str(low)
    high = stats.highest_rate(Served(100), 0.95, 0.5, 16)
    assert high.low == 16 and math.isinf(high.high) and "highest rate tried" in str(high)
    assert math.isnan(high.rate)


def test_what_was_measured_is_used_again_and_never_measured_twice():
    server, tried = Served(3.7), {}
    for wanted in (0.90, 0.95, 0.99):
        stats.highest_rate(server, wanted, 0.5, 16, tried=tried)
    assert len(server.asked) == len(set(server.asked))
    again = Served(3.7)
    stats.highest_rate(again, 0.95, 0.5, 16, tried=tried)
    assert again.asked == []


def test_a_faulty_search_is_refused_with_a_sentence():
    with pytest.raises(KvtopError, match="0 < low < high"):
        stats.highest_rate(Served(1), 0.95, 2, 1)
    with pytest.raises(KvtopError, match="one repeat"):
        stats.highest_rate(Served(1), 0.95, 1, 2, repeats=0)
    with pytest.raises(KvtopError, match="not a share"):
        stats.highest_rate(lambda rate, repeat: 1.2, 0.95, 1, 2)


@pytest.mark.parametrize("truth", [0.7, 2.0, 9.0])
def test_a_noisy_simulated_server_is_searched_with_few_wrong_ends(truth):
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(60):

        def attainment(rate: float, repeat: int) -> float:
            share = 1 - 0.05 * (rate * math.exp(rng.normal(0, 0.05)) / truth) ** 6
            return rng.binomial(200, np.clip(share, 0, 1)) / 200

        found = stats.highest_rate(attainment, 0.95, 0.1, 40, repeats=3)
        wrong += not found.low <= truth <= found.high
    assert wrong / 60 < 0.35  # each end: at most 2 ** -3 at every rate next to the true one


def test_a_ladder_of_measured_rates_by_hand():
    attained = {
        2.0: (0.5, 0.4), 0.5: (1.0, 0.97), 1.0: (0.96, 0.95), 1.5: (0.94, 0.99), 3.0: (0.1, 0.2),
    }  # fmt: skip
    found = stats.ladder(0.95, attained)
    assert (found.low, found.high) == (1.0, 2.0)  # at 1.5 the repeats disagree
    assert stats.ladder(0.3, attained).high == 3.0 and stats.ladder(0.05, attained).low == 3.0
    with pytest.raises(KvtopError, match="one measurement per rate"):
        stats.ladder(0.95, {1.0: ()})

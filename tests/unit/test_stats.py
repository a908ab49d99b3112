"""Ratios within blocks; intervals against textbook numbers and by measured coverage."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from kvtop_lib import stats
from kvtop_lib.terms import KvtopError


def _points(rows) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["arm", "c", "block", "x"])
    return frame.assign(workload="agent", status="ok", line=range(1, len(frame) + 1))


BLOCKS = _points(
    [
        ("baseline", 1, 1, 100.0),
        ("baseline", 1, 2, 80.0),  # a slow launch, slow for both arms
        ("mtp", 1, 1, 130.0),
        ("mtp", 1, 2, 104.0),
        ("mtp", 4, 1, 500.0),  # no baseline at this load
    ]
)


def test_ratios_are_formed_within_a_block():
    r = stats.block_ratios(BLOCKS, "x")
    assert list(r.ratio) == pytest.approx([1.3, 1.3])
    assert r[["line", "baseline_line"]].values.tolist() == [[3, 1], [4, 2]]


def test_only_points_that_are_ok_form_pairs():
    bad = BLOCKS.assign(status=["ok", "ok", "invalid", "ok", "ok"])
    assert list(stats.block_ratios(bad, "x").block) == [2]
    with pytest.raises(KvtopError, match="nothing to compare with"):
        stats.block_ratios(BLOCKS.assign(status="failed"), "x")
    with pytest.raises(KvtopError, match="nothing to compare with"):
        stats.block_ratios(BLOCKS, "absent")


def test_one_block_has_no_interval_and_says_so():
    s = stats.summarise(stats.block_ratios(BLOCKS[BLOCKS.block == 1], "x"))
    assert s.ratio[0] == pytest.approx(1.3) and s.n[0] == 1 and s.df[0] == 0
    assert math.isnan(s.low[0]) and math.isnan(s.high[0])
    assert "no interval" in stats.how_sure(s)


def test_interval_of_three_blocks_by_hand():
    ratios = [1.1, 1.2, 1.3]
    r = pd.DataFrame({"arm": "a", "workload": "w", "c": 1, "block": [1, 2, 3], "ratio": ratios})
    s = stats.summarise(r).iloc[0]
    logs = [math.log(x) for x in ratios]
    mean = sum(logs) / 3
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2)
    half = 4.302652730 * sd / math.sqrt(3)  # t table: two degrees of freedom, 97.5 %
    assert s.ratio == pytest.approx(math.exp(mean)) and s.df == 2
    assert (s.low, s.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)))
    assert (s.smallest, s.largest) == pytest.approx((1.1, 1.3))


def test_variance_is_pooled_over_groups_and_a_lonely_group_gets_no_interval():
    r = pd.DataFrame(
        {
            "arm": ["a", "a", "b", "b", "c"],
            "workload": "w",
            "c": 1,
            "block": [1, 2, 1, 2, 1],
            "ratio": np.exp([0.0, 0.2, 0.5, 0.5, 1.0]),
        }
    )
    s = stats.summarise(r).set_index("arm")
    # between the blocks the baseline gains 0, a gains 0.2, b 0: the launches' sum of squares
    # about the common gain is 0.5 * (0.2**2 - 3 * (0.2 / 3)**2), on two degrees of freedom; a
    # ratio holds two launches, and two blocks halve it
    launch = 0.5 * (0.04 - 0.04 / 3) / 2
    half = 4.302652730 * math.sqrt(2 * launch / 2)
    assert s.df.to_dict() == pytest.approx({"a": 2, "b": 2, "c": 0})
    for arm, mean in (("a", 0.1), ("b", 0.5)):
        assert s.low[arm] == pytest.approx(math.exp(mean - half))
    assert math.isnan(s.low["c"])
    assert "n = 1 to 2 blocks" in stats.how_sure(s.reset_index())
    assert "points with n = 1 have no interval" in stats.how_sure(s.reset_index())

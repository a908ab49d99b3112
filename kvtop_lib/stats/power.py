"""What a plan can see: power, and the smallest difference that it detects."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, stats

from kvtop_lib.terms import KvtopError


def power(effect: float, se: float, df: float, confidence: float = 0.95) -> float:
    """Probability that the interval of a log ratio `effect` leaves out 0 (noncentral t)."""
    limit = stats.t.ppf((1 + confidence) / 2, df)
    shift = abs(effect) / se
    wrong_side = np.nan_to_num(stats.nct.cdf(-limit, df, shift))  # far out it is not representable
    return float(stats.nct.sf(limit, df, shift) + wrong_side)


def detectable(se: float, df: float, confidence: float = 0.95, wanted: float = 0.8) -> float:
    """Minimum detectable effect: a ratio nearer to 1 than this is likely to be missed.

    Parameters
    ----------
    se, df
        Standard error of a log ratio and its degrees of freedom (`kvtop_lib.stats.summarise`).
    confidence, wanted
        Coverage of the interval; probability with which the difference is to be seen.

    Returns
    -------
    float
        Relative difference: 0.05 says that an arm 5 % above the baseline is seen with
        probability `wanted`. NaN without an interval, as with one block.
    """
    if not (df > 0 and np.isfinite(se) and se >= 0):
        return math.nan
    if se == 0:
        return 0.0
    limit = stats.t.ppf((1 + confidence) / 2, df)
    top = limit + stats.t.ppf(wanted, df)
    shift = optimize.brentq(lambda s: power(s * se, se, df, confidence) - wanted, 0.0, 2 * top)
    return float(math.expm1(shift * se))


def planned(
    launch_sd: float,
    rest_sd: float,
    *,
    arms: int,
    loads: int,
    blocks: int,
    confidence: float = 0.95,
    wanted: float = 0.8,
) -> float:
    """Minimum detectable effect of a plan that is yet to be run.

    Parameters
    ----------
    launch_sd, rest_sd
        Standard deviations of the log of the metric between launches and within one, from an
        earlier run (`kvtop_lib.stats.of_ratios`, square roots).
    arms, loads, blocks
        Size of the plan; the baseline counts as an arm.

    Raises
    ------
    KvtopError
        When there is nothing to compare.
    """
    if arms < 2 or loads < 1 or blocks < 1:
        raise KvtopError("a plan needs two arms, one of them the baseline, a load and a block")
    df_launch, df_rest = (arms - 1) * (blocks - 1), (arms - 1) * (blocks - 1) * (loads - 1)
    if not df_launch:
        return math.nan
    between = launch_sd**2 + rest_sd**2 / loads  # mean square between launches / loads
    within = rest_sd**2 * (1 - 1 / loads)
    total = between + within
    if total == 0:
        return 0.0
    weight = between * (1 + 2 / df_launch)  # as in `kvtop_lib.stats.components`
    noise = weight**2 / df_launch + (within**2 / df_rest if df_rest else 0.0)
    df = (weight + within) ** 2 / noise
    return detectable(math.sqrt(2 * total / blocks), df, confidence, wanted)

"""Comparing arms: ratios within a block, and intervals only where repeats allow them.

The statistical unit is a repeat, i.e. the same point in another block (server launch). A ratio
is formed within a block pair, so that what both servers of a block share cancels.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from kvtop_lib.stats.components import of_ratios
from kvtop_lib.terms import KvtopError

GROUP = ["arm", "workload", "c"]


def block_ratios(points: pd.DataFrame, metric: str, baseline: str = "baseline") -> pd.DataFrame:
    """Ratio of each arm to the baseline within each block.

    Parameters
    ----------
    points
        Results (`kvtop_lib.store.Run.results`): ``arm``, ``workload``, ``c``, ``block``,
        ``status``, ``line`` and the metric.
    metric
        Column, positive; points that are not ``ok`` or lack it form no pair.
    baseline
        The arm that the others are compared with.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``block``, ``ratio``, and ``line``, ``baseline_line`` of
        both points in ``results.jsonl``; one row per pair.

    Raises
    ------
    KvtopError
        When the baseline has no usable point.
    """
    keys = ["workload", "c", "block"]
    usable = points[points["status"] == "ok"].reindex(columns=["arm", *keys, "line", metric])
    usable = usable[pd.to_numeric(usable[metric], errors="coerce") > 0]
    base = usable.loc[usable["arm"] == baseline, [*keys, metric, "line"]]
    if base.empty:
        raise KvtopError(
            f"no point of {baseline!r} is ok and has {metric}: nothing to compare with"
        )
    pairs = usable[usable["arm"] != baseline].merge(base, on=keys, suffixes=("", "_baseline"))
    ratio = pairs[metric].astype(float) / pairs[f"{metric}_baseline"].astype(float)
    out = pairs[["arm", *keys]].assign(
        ratio=ratio, line=pairs["line"], baseline_line=pairs["line_baseline"]
    )
    return out.sort_values([*GROUP, "block"], ignore_index=True)


def summarise(ratios: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Geometric mean of the ratios per arm and load, with an interval where n allows one.

    t interval on log ratios. The variances between and within launches are pooled over loads and
    arms (`kvtop_lib.stats.components`), which takes the spread to be the same at every load. A
    group of one block has no interval: what a single launch is worth cannot be read from other
    groups' means.

    Parameters
    ----------
    ratios
        Output of `block_ratios`.
    confidence
        Coverage of the interval.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``n`` (block pairs), ``ratio``, ``low``, ``high`` (NaN
        without an interval), ``smallest``, ``largest`` (range of the blocks), ``se`` (standard
        error of the log ratio), ``df`` (degrees of freedom of it, 0 without an interval),
        ``p_higher`` (probability that the ratio is above 1, flat prior), ``p`` (two-sided).
    """
    logs = ratios.assign(log=np.log(ratios["ratio"].astype(float)))
    by = logs.groupby(GROUP, sort=True)["log"]
    out = by.agg(n="size", mean="mean", least="min", most="max").reset_index()
    share = 2.0 / out["n"].to_numpy(float)
    variance, df = of_ratios(logs).variance(share, share)
    lonely = out["n"].to_numpy() < 2
    se, df = np.where(lonely, np.nan, np.sqrt(variance)), np.where(lonely, 0.0, df)
    with np.errstate(invalid="ignore", divide="ignore"):
        half = stats.t.ppf((1 + confidence) / 2, df) * se
        t = out["mean"] / se
        higher = stats.t.cdf(t, df)
    return pd.DataFrame(
        {
            **{k: out[k] for k in (*GROUP, "n")},
            "ratio": np.exp(out["mean"]),
            "low": np.exp(out["mean"] - half),
            "high": np.exp(out["mean"] + half),
            "smallest": np.exp(out["least"]),
            "largest": np.exp(out["most"]),
            "se": se,
            "df": df,
            "p_higher": higher,
            "p": 2 * np.minimum(higher, 1 - higher),
        }
    )


def how_sure(summary: pd.DataFrame, confidence: float = 0.95) -> str:
    """How many repeats a summary rests on and what its interval is, for a caption."""
    if summary.empty:
        return "no block pair has both points"
    least, most, df = int(summary["n"].min()), int(summary["n"].max()), summary["df"].max()
    blocks = f"n = {most}" if least == most else f"n = {least} to {most}"
    if most == 1:
        return f"{blocks} block per point: no interval, differences may be noise"
    lonely = "; points with n = 1 have no interval" if least == 1 else ""
    return (
        f"{blocks} blocks per point; {confidence:.0%} t interval on log ratios within a block, "
        f"launch variance pooled over loads and arms ({df:.3g} degrees of freedom){lonely}"
    )

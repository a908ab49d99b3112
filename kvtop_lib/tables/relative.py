"""Frames that set arms against the baseline at the same load: yield and cost, and their product."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvtop_lib.tables.frames import ratios

FACTORS = {
    "decoding_mean": "requests decoding",
    "tokens_per_step": "tokens per iteration",
    "iteration_s_p50": "iteration time",
}
REST = "remainder"


def _steps(points: pd.DataFrame) -> pd.DataFrame:
    """Points whose arms without drafts yield one token per iteration, by definition."""
    plain = (points["method"] == "none") & (points["status"] == "ok")
    return points.assign(tokens_per_step=points["tokens_per_step"].mask(plain, 1.0))


def yield_and_cost(points: pd.DataFrame) -> pd.DataFrame:
    """Tokens per iteration and iteration time over the baseline's, per drafting arm and load.

    Parameters
    ----------
    points : DataFrame
        `kvtop_lib.tables.points`.

    Returns
    -------
    DataFrame
        ``arm``, ``title``, ``axis``, ``c``, ``yield_ratio``, ``cost_ratio`` (geometric means over
        block pairs), ``lines`` (pairs of lines of results.jsonl); loads with both only.
    """
    gain, cost = (ratios(_steps(points), k) for k in ("tokens_per_step", "iteration_s_p50"))
    columns = ["arm", "title", "axis", "c", "yield_ratio", "cost_ratio", "lines"]
    if gain.empty:
        return pd.DataFrame(columns=columns)
    both = cost.assign(yield_ratio=gain["mean"], cost_ratio=cost["mean"])
    return both.dropna(subset=["yield_ratio", "cost_ratio"])[columns].reset_index(drop=True)


def decomposition(points: pd.DataFrame) -> pd.DataFrame:
    """Log contributions to the ratio of throughput, per drafting arm and load.

    throughput = requests decoding x tokens per iteration / iteration time x remainder; the
    remainder closes the sum and is no measurement of its own.

    Returns
    -------
    DataFrame
        ``arm``, ``title``, ``axis``, ``c``, ``factor``, ``log_ratio`` (natural log; positive
        raises throughput); loads with all factors only.
    """
    points = _steps(points)
    total = ratios(points)
    columns = ["arm", "title", "axis", "c", "factor", "log_ratio"]
    if total.empty:
        return pd.DataFrame(columns=columns)
    logs = pd.DataFrame({FACTORS[k]: np.log(_mean(ratios(points, k))) for k in FACTORS})
    logs["iteration time"] *= -1
    logs[REST] = np.log(_mean(total)) - logs.sum(axis=1, skipna=False)
    wide = pd.concat([total[["arm", "title", "axis", "c"]], logs], axis=1).dropna()
    keys = ["arm", "title", "axis", "c"]
    tall = wide.melt(keys, var_name="factor", value_name="log_ratio")
    rank = wide.reset_index(drop=True).reset_index(names="rank")[["arm", "c", "rank"]]
    return (
        tall.merge(rank, on=["arm", "c"])
        .sort_values("rank", kind="stable", ignore_index=True)
        .drop(columns="rank")
    )


def _mean(frame: pd.DataFrame) -> pd.Series:
    return frame["mean"].astype(float)

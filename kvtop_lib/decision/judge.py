"""Verdicts by load and latency target, the ranges they form, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from kvtop_lib import stats
from kvtop_lib.stats.verdicts import BASELINE_AA
from kvtop_lib.terms import KvtopError

BASELINE = "baseline"
LIMITS = tuple(f"{m}_{q}" for m in ("ttft_s", "tpot_s", "e2e_s") for q in ("p50", "p90", "p99"))
WORDS = {"higher": "better", "lower": "worse", "none": "indistinguishable", "unknown": "unknown"}

RULE = (
    "an arm that drafts is the default where it is better at some measured load and worse at none; "
    "among several, the one with the highest mean gain. Otherwise the baseline is, and an arm that "
    "is better at low loads is named with the load up to which it was never worse."
)


@dataclass(frozen=True)
class Target:
    """A latency target: every limit is kept in every block.

    Attributes
    ----------
    name : for tables.
    limits : upper limits in seconds by column of the results, such as ``ttft_s_p90``.
    """

    name: str = "none"
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column, limit in self.limits.items():
            if column not in LIMITS:
                raise KvtopError(f"no latency target on {column!r}; known: {', '.join(LIMITS)}")
            if not (isinstance(limit, int | float) and limit > 0):
                raise KvtopError(f"the limit of {column} must be seconds above 0, not {limit!r}")

    def met(self, points: pd.DataFrame) -> pd.Series:
        """Whether each point keeps every limit; one without the number does not."""
        kept = pd.Series(True, index=points.index)
        for column, limit in self.limits.items():
            values = points[column] if column in points else np.nan
            kept &= pd.to_numeric(pd.Series(values, index=points.index), errors="coerce") <= limit
        return kept


def judge(
    points: pd.DataFrame, target: Target = Target(), confidence: float = 0.95
) -> pd.DataFrame:
    """Verdict on every arm at every load.

    Parameters
    ----------
    points
        `kvtop_lib.store.Run.results` of one kind of load, ``c`` being its size.
    target
        Where a target is set, an arm that keeps it where the baseline does not is better, and the
        reverse; where both do, throughput decides.
    confidence
        Of the intervals.

    Returns
    -------
    DataFrame
        Columns of `kvtop_lib.stats.summarise` and ``throughput`` (verdict on it), ``meets``,
        ``baseline_meets``, ``detectable`` (minimum detectable effect, relative), ``lines`` (pairs
        of lines of results.jsonl) and ``verdict``: ``better``, ``worse``, ``indistinguishable``,
        ``unknown``, or ``missed`` (both miss the target).

    Raises
    ------
    KvtopError
        When the baseline has no point that is ok.
    """
    ratios = stats.block_ratios(points, "output_tok_s", BASELINE)
    out = stats.summarise(ratios, confidence)
    out["throughput"] = stats.verdicts(out, stats.noise_floor(out))
    ok = points[points["status"] == "ok"]  # a point that failed says nothing about latency
    met = ok.assign(met=target.met(ok)).groupby(stats.GROUP)["met"].all()
    out["meets"] = [bool(met.get((r.arm, r.workload, r.c), False)) for r in out.itertuples()]
    out["baseline_meets"] = [bool(met.get((BASELINE, r.workload, r.c), False)) for r in
                             out.itertuples()]  # fmt: skip
    out["detectable"] = [stats.detectable(r.se, r.df, confidence) for r in out.itertuples()]
    lines = {
        key: [(int(a), int(b)) for a, b in own[["line", "baseline_line"]].to_numpy()]
        for key, own in ratios.groupby(stats.GROUP)
    }
    out["lines"] = [lines[(r.arm, r.workload, r.c)] for r in out.itertuples()]
    out["verdict"] = out["throughput"].map(WORDS)
    out.loc[out["meets"] & ~out["baseline_meets"], "verdict"] = "better"
    out.loc[~out["meets"] & out["baseline_meets"], "verdict"] = "worse"
    out.loc[~out["meets"] & ~out["baseline_meets"], "verdict"] = "missed"
    return out


def ranges(judged: pd.DataFrame) -> list[dict[str, Any]]:
    """Neighbouring loads of one arm with one verdict: ``verdict``, ``from``, ``to``."""
    found: list[dict[str, Any]] = []
    for row in judged.sort_values("c").itertuples():
        if found and found[-1]["verdict"] == row.verdict:
            found[-1]["to"] = float(row.c)
        else:
            found.append({"verdict": row.verdict, "from": float(row.c), "to": float(row.c)})
    return found


def recommend(judged: pd.DataFrame) -> dict[str, Any]:
    """Default arm for one workload and target, by `RULE`.

    Returns
    -------
    dict
        ``arm``, ``reason``; ``up_to``: ``{arm: load}`` of arms that are better somewhere at or
        below this load and worse nowhere at or below it, when they are worse above it.
    """
    arms = judged[judged["arm"] != BASELINE_AA]
    sure, up_to = {}, {}
    for arm, own in arms.groupby("arm", sort=False):
        own = own.sort_values("c")
        loses = (own["verdict"] == "worse").to_numpy()
        wins = (own["verdict"] == "better").to_numpy()
        reach = int(loses.argmax()) if loses.any() else len(own)
        if not wins[:reach].any():
            continue
        if loses.any():
            up_to[arm] = float(own["c"].iloc[reach - 1])
        else:
            sure[arm] = float(np.log(own["ratio"].astype(float)).mean())
    if sure:
        best = max(sure, key=sure.__getitem__)
        return {"arm": best, "reason": "better at some load, worse at none", "up_to": up_to}
    if len(arms) and (arms["verdict"] == "unknown").all():
        reason = "one block and no A/A pair: nothing here tells a difference from noise"
    elif up_to:
        reason = "every arm that is better at some load is worse at another"
    else:
        reason = "no arm is better at any measured load"
    return {"arm": BASELINE, "reason": reason, "up_to": up_to}

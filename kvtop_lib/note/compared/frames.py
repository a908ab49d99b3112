"""Frames of two runs side by side."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from kvtop_lib.note.compared.differences import shared_arms
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.terms import KvtopError

CONFIDENCE = 0.95


def welch(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """Ratio second over first of geometric means, with Welch's t interval on their logs.

    The two runs share no launch, so nothing is paired. NaN bounds where one of them has fewer
    than two blocks (B. L. Welch, Biometrika 34, 1947).
    """
    a, b = np.log(np.asarray(first, float)), np.log(np.asarray(second, float))
    middle = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return math.exp(middle), math.nan, math.nan
    parts = [x.var(ddof=1) / len(x) for x in (a, b)]
    total = sum(parts)
    if total == 0:
        return math.exp(middle), math.exp(middle), math.exp(middle)
    df = total**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, df)) * math.sqrt(total)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def between(first: Evidence, second: Evidence, column: str = "output_tok_s") -> pd.DataFrame:
    """Second run over first, per shared arm and load.

    Returns
    -------
    DataFrame
        ``arm``, ``title`` (the first run's), ``axis``, ``c``, ``mean`` (ratio), ``low``, ``high``
        (None without an interval), ``values``, ``n`` (blocks of the run with fewer), ``first`` and
        ``second`` (lists of lines of the two results.jsonl), ``status``, ``reason``.

    Raises
    ------
    KvtopError
        When no point of both runs is ok, or one is by lanes and the other by rates.
    """
    if first.axis != second.axis:
        raise KvtopError(
            f"one run has loads by {first.axis}, the other by {second.axis}; they do not compare"
        )
    frames = [ev.by_load(column).set_index(["arm", "c"]) for ev in (first, second)]
    rows = []
    for arm in shared_arms(first, second):
        for c in sorted(set(first.loads) & set(second.loads)):
            if any((arm, c) not in f.index or not f.loc[(arm, c), "n"] for f in frames):
                continue
            a, b = (f.loc[(arm, c)] for f in frames)
            ratio, low, high = welch(a["values"], b["values"])
            rows.append(
                {"arm": arm, "title": first.arms[arm].get("title") or arm,
                 "axis": first.axis, "c": c, "mean": ratio,
                 "low": None if math.isnan(low) else low,
                 "high": None if math.isnan(high) else high, "values": [ratio],
                 "n": min(a["n"], b["n"]), "first": a["lines"], "second": b["lines"],
                 "status": "ok", "reason": ""}
            )  # fmt: skip
    if not rows:
        raise KvtopError("the runs share no arm and load with a point that is ok in both")
    return pd.DataFrame(rows)


def gains(first: Evidence, second: Evidence, names: list[str]) -> pd.DataFrame:
    """Ratio of the first run's headline arm to its reference in both runs, titled by run."""
    parts = [
        ev.ratios[ev.ratios["arm"] == first.primary].assign(title=name)
        for ev, name in zip((first, second), names, strict=True)
        if len(ev.ratios)
    ]
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["n"])
    return found[found["n"] > 0].reset_index(drop=True)

"""Percentiles that know censored values."""

from __future__ import annotations

import math

import numpy as np


def percentile(values, q: float) -> float | None:
    """Percentile with linear interpolation; a censored value is ``+inf`` and stays in.

    Parameters
    ----------
    values
        One-dimensional, ``+inf`` where the event had not happened when watching ended.
    q
        Between 0 and 100.

    Returns
    -------
    float or None
        ``+inf`` when the percentile rests on a censored value, None without values. Equal to
        ``numpy.percentile`` (method ``linear``) when all values are finite; numpy itself gives
        NaN next to an infinity.
    """
    x = np.sort(np.asarray(values, dtype=float))
    if not len(x):
        return None
    rank = (len(x) - 1) * q / 100
    low, part = int(rank), rank - int(rank)
    if part == 0 or x[low] == math.inf:
        return float(x[low])
    return float(x[low] + part * (x[low + 1] - x[low]))


def percentiles(values, qs: tuple[int, ...] = (50, 90, 99)) -> dict[str, float | None]:
    """``{"p50": ..., "p90": ..., "p99": ...}``."""
    return {f"p{q}": percentile(values, q) for q in qs}

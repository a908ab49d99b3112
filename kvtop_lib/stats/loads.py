"""Kinds of load: lanes of a closed loop, and arrival rates; the two are never on one axis."""

from __future__ import annotations

import numpy as np
import pandas as pd

OPEN = " (open loop, load = starts/s)"
LANES, RATES = "lanes", "rates"


def _rate(results: pd.DataFrame) -> pd.Series:
    """Session starts per second that a load's name begins with, NaN for other loads."""
    names = results["load"].astype(str).str
    return pd.to_numeric(names.extract(r"^r(\d+(?:\.\d+)?)(?:-.*)?$")[0])


def _arrivals(results: pd.DataFrame) -> pd.Series:
    """How the sessions of a rate arrive: ``poisson``, ``gamma0.25``, ``constant``."""
    names = results["load"].astype(str).str
    return names.extract(r"^r\d+(?:\.\d+)?(?:-(.+))?$")[0].fillna("poisson")


def load_axis(results: pd.DataFrame) -> pd.DataFrame:
    """Results with a load in every row: lanes, or the rate that a load's name begins with.

    Open loops become a workload of their own, since lanes and rates are not on one axis; loads
    without a single rate (steps, trace time stamps) are left out.
    """
    rate, kind = _rate(results), _arrivals(results)
    lanes = pd.to_numeric(results["c"], errors="coerce").where(rate.isna())
    frame = results.assign(c=lanes.fillna(rate))
    frame["workload"] = np.where(
        rate.notna(), results["workload"] + ", " + kind + OPEN, results["workload"]
    )
    return frame.dropna(subset=["c"])


def axes(results: pd.DataFrame) -> list[str]:
    """Kinds of load that results hold points of, lanes first."""
    held = {LANES: pd.to_numeric(results["c"], errors="coerce"), RATES: _rate(results)}
    return [axis for axis, values in held.items() if values.notna().any()]


def on_axis(results: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Points of one kind of load, its size being ``c``.

    Lanes are whole numbers; rates are session starts per second. Of several kinds of arrivals the
    one with the most points is taken, Poisson in doubt: a burst and a steady stream of one rate
    are two loads.
    """
    if axis == LANES:
        lanes = pd.to_numeric(results["c"], errors="coerce")
        return results[lanes.notna()].astype({"c": int})
    rate, kind = _rate(results), _arrivals(results)
    counts = kind[rate.notna()].value_counts()
    if counts.empty:
        return results.iloc[:0]
    most = sorted(counts[counts == counts.max()].index, key=lambda k: (k != "poisson", k))[0]
    chosen = rate.notna() & (kind == most)
    return results[chosen].assign(c=rate[chosen].astype(float))


def first_axis(results: pd.DataFrame) -> pd.DataFrame:
    """Points by lanes where there are any, else by rates; no row of a run without either."""
    held = axes(results)
    return on_axis(results, held[0]) if held else results.iloc[:0]

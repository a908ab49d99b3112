"""The load at which a gain turns into a loss, with an interval or the statement that there is none.

The log ratio is taken as piecewise linear in the log of the load between measured loads. The
interval holds every load at which the ratio is not distinguishable from 1 (the t interval of the
interpolated log ratio contains 0); where it reaches the edge of the measured range it is open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from kvtop_lib.stats.components import Components, of_ratios

Kind = Literal["crosses", "above", "below", "several"]
_STEPS = 200  # grid points between two measured loads


@dataclass(frozen=True)
class Crossover:
    """Where an arm's ratio to the baseline falls through 1.

    Attributes
    ----------
    kind
        ``crosses``: from above 1 to below; ``above`` / ``below``: the ratio stays on that side,
        the crossover, if any, lies outside the measured loads; ``several``: more than one change
        of side, or from below to above.
    load
        Estimate; NaN unless it crosses.
    low, high
        Interval; ``None`` where it is open (censored by the measured range) or unknown.
    least, most
        Measured range of loads.
    known
        Whether there is an interval at all.
    clear
        Known, and distinguishable from equal at every load: the side is certain.
    """

    kind: Kind
    load: float
    low: float | None
    high: float | None
    least: float
    most: float
    known: bool
    clear: bool = False

    def __str__(self) -> str:
        reach = f"the measured loads ({self.least:g} to {self.most:g})"
        text = {
            "crosses": f"crossover at load {self.load:.3g}",
            "above": f"no crossover: ahead at all of {reach}",
            "below": f"no crossover: behind at all of {reach}",
            "several": f"not a single turn from gain to loss within {reach}",
        }[self.kind]
        if not self.known:
            return f"{text}; one block, so no interval"
        if self.clear:
            return text
        low = f"{self.low:.3g}" if self.low is not None else f"below {self.least:g}"
        high = f"{self.high:.3g}" if self.high is not None else f"above {self.most:g}"
        return f"{text}; not distinguishable from equal from {low} to {high}"


def crossover(
    loads: np.ndarray,
    logs: np.ndarray,
    blocks: list[set[int]],
    parts: Components,
    confidence: float = 0.95,
) -> Crossover:
    """Crossover of one arm.

    Parameters
    ----------
    loads : increasing, positive.
    logs : mean log ratios at them.
    blocks : blocks that each mean rests on.
    parts : variances of the run (`kvtop_lib.stats.of_ratios`).
    """
    loads, logs = np.asarray(loads, float), np.asarray(logs, float)
    x, mean, var, df = _curve(np.log(loads), logs, blocks, parts)
    kind, at = _turn(np.log(loads), logs)
    common = {"least": float(loads[0]), "most": float(loads[-1])}
    if not np.isfinite(var).all():
        return Crossover(kind, at, None, None, **common, known=False)
    with np.errstate(invalid="ignore"):
        level = np.abs(mean) <= stats.t.ppf((1 + confidence) / 2, df) * np.sqrt(var)
    if not level.any():  # a clear side throughout, or a turn sharper than the grid
        edge = at if kind == "crosses" else None
        return Crossover(kind, at, edge, edge, **common, known=True, clear=True)
    inside = np.exp(x[level])
    low = None if level[0] else float(inside[0])
    high = None if level[-1] else float(inside[-1])
    return Crossover(kind, at, low, high, **common, known=True)


def crossovers(ratios: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Crossover of every arm and workload in `kvtop_lib.stats.block_ratios`'s output.

    Loads with one block are left out where two or more have repeats, and make an estimate without
    an interval otherwise.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``crossover`` (`Crossover`); arms with one load have no row.
    """
    parts, rows = of_ratios(ratios), []
    for (arm, workload), own in ratios.groupby(["arm", "workload"], sort=False):
        n = own.groupby("c")["block"].transform("size")
        own = own[n > 1] if own.loc[n > 1, "c"].nunique() > 1 else own
        by = own.groupby("c", sort=True)
        loads = np.array([c for c, _ in by], float)
        if len(loads) < 2 or (loads <= 0).any():
            continue
        logs = np.array([np.log(g["ratio"].astype(float)).mean() for _, g in by])
        found = crossover(loads, logs, [set(g["block"]) for _, g in by], parts, confidence)
        rows.append({"arm": arm, "workload": workload, "crossover": found})
    return pd.DataFrame(rows, columns=["arm", "workload", "crossover"])


def weights(share: np.ndarray, left: set[int], right: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """Weights of launch and rest variance in an interpolated mean log ratio.

    ``(1 - share) * left mean + share * right mean``, each over its blocks; factor 2 for the arm's
    and the baseline's launches.
    """
    launch = np.zeros_like(share)
    for block in left | right:
        own = (1 - share) * (block in left) / len(left) + share * (block in right) / len(right)
        launch = launch + own**2
    rest = (1 - share) ** 2 / len(left) + share**2 / len(right)
    return 2 * launch, 2 * rest


def _curve(x: np.ndarray, logs: np.ndarray, blocks: list[set[int]], parts: Components):
    """Interpolated log ratio over log load, its variance and degrees of freedom."""
    share = np.linspace(0, 1, _STEPS + 1)
    found = []
    for i in range(len(x) - 1):
        var, df = parts.variance(*weights(share, blocks[i], blocks[i + 1]))
        if min(len(blocks[i]), len(blocks[i + 1])) < 2:
            var = var * math.nan
        line = ((1 - share) * v[i] + share * v[i + 1] for v in (x, logs))
        found.append([*line, var, df])
    return (np.concatenate(v) for v in zip(*found, strict=True))


def _turn(x: np.ndarray, logs: np.ndarray) -> tuple[Kind, float]:
    signs = np.sign(logs)
    signs = signs[signs != 0]
    if not len(signs):
        return "several", math.nan
    turns = np.flatnonzero(np.diff(signs))
    if not len(turns):
        return ("above" if signs[0] > 0 else "below"), math.nan
    if len(turns) > 1 or signs[0] < 0:
        return "several", math.nan
    nonzero = np.flatnonzero(logs != 0)
    i, j = nonzero[turns[0]], nonzero[turns[0] + 1]
    if j - i > 1:  # exactly equal at a measured load
        return "crosses", float(np.exp(x[i + 1]))
    return "crosses", float(np.exp(x[i] + (x[j] - x[i]) * logs[i] / (logs[i] - logs[j])))

"""Better, worse, or no difference: the A/A noise floor, and how many questions were asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

BASELINE_AA = "baseline_aa"
"""The baseline under another name; whatever differs between the two is noise."""


@dataclass(frozen=True)
class Floor:
    """What the A/A pair showed.

    Attributes
    ----------
    ratio : largest difference of the pair at any load, as a ratio of at least 1; NaN without one.
    loads, blocks : how many loads and blocks (at most) it rests on.
    covered : loads whose interval contains 1, of `judged` with an interval.
    rms : root mean square of its log ratios; what their mean would be is known, it is 0.
    """

    ratio: float
    loads: int
    blocks: int
    covered: int
    judged: int
    rms: float = math.nan

    def limit(self, confidence: float = 0.95) -> float:
        """Largest absolute log ratio of a single block that noise explains.

        One degree of freedom per block of the pair, however many loads, since the points of a
        launch share its luck: with one block 12.7 times what the pair showed.
        """
        return float(stats.t.ppf((1 + confidence) / 2, self.blocks)) * self.rms

    def __str__(self) -> str:
        if not self.loads:
            return "no A/A pair was run, so the noise of this machine is not known"
        loads = f"{self.loads} load{'s' if self.loads > 1 else ''}"
        shown = f"the A/A pair differed by up to {self.ratio - 1:.1%} ({loads}, n = {self.blocks})"
        if self.judged:
            shown += f"; {self.covered} of its {self.judged} intervals contain 'equal'"
        return shown


def noise_floor(summary: pd.DataFrame, arm: str = BASELINE_AA) -> Floor:
    """Noise floor of a run from its A/A arm in `kvtop_lib.stats.summarise`'s output."""
    pair = summary[summary["arm"] == arm]
    if pair.empty:
        return Floor(math.nan, 0, 0, 0, 0)
    known = pair.dropna(subset=["low", "high"])
    covered = int(((known["low"] <= 1) & (known["high"] >= 1)).sum())
    logs = np.log(pair["ratio"].to_numpy(float))
    largest, rms = math.exp(float(np.abs(logs).max())), math.sqrt(float(np.square(logs).mean()))
    return Floor(largest, len(pair), int(pair["n"].max()), covered, len(known), rms)


def verdicts(summary: pd.DataFrame, floor: Floor | None = None) -> pd.Series:
    """``higher``, ``lower``, ``none`` or ``unknown`` for every row of a summary.

    A difference counts when its interval leaves out 1 and it is larger than the A/A pair's
    largest. With one block there is no interval; it has to be beyond the A/A pair's `Floor.limit`;
    without such a pair nothing says what noise is, and the verdict is ``unknown``.
    """
    size = np.abs(np.log(summary["ratio"].to_numpy(float)))
    beyond, apart = np.ones(len(summary), bool), np.zeros(len(summary), bool)
    if floor is not None and floor.loads:
        beyond, apart = size > math.log(floor.ratio) + 1e-12, size > floor.limit()
    judged = summary["low"].notna().to_numpy()
    outside = ((summary["low"] > 1) | (summary["high"] < 1)).to_numpy()
    differs = beyond & np.where(judged, outside, apart)
    side = np.where(summary["ratio"] > 1, "higher", "lower")
    found = np.where(differs, side, "none")
    if floor is None or not floor.loads:
        found = np.where(judged, found, "unknown")
    return pd.Series(found, index=summary.index, name="verdict")


def holm(p: pd.Series) -> pd.Series:
    """p values adjusted for their number (Holm, Scand. J. Statist. 6, 1979); NaN stays NaN."""
    known = p.dropna().sort_values()
    steps = (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1.0)
    return steps.reindex(p.index)


def multiplicity(summary: pd.DataFrame, confidence: float = 0.95) -> str:
    """How many comparisons were made, and what that does to single ones, in words."""
    asked = summary["p"].dropna()
    if asked.empty:
        return "no comparison has an interval"
    m, alpha = len(asked), 1 - confidence
    single, kept = int((asked < alpha).sum()), int((holm(asked) < alpha).sum())
    chance = f"{m * alpha:.1f}".rstrip("0").rstrip(".")
    return (
        f"{m} comparisons were made; if nothing differed, about {chance} of them would still look "
        f"different at {confidence:.0%}. {single} do, {kept} of them also when adjusted for "
        f"their number (Holm)"
    )

"""A change against the reference arm at one load, and when it is called level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvtop_lib.note.prose import Value

NEAR = 0.02
"""Without repeats a change smaller than this is called level; a convention, since one block cannot
tell how far another would differ."""

Verdict = Literal["gain", "loss", "same"]


@dataclass(frozen=True)
class Change:
    """Change of one quantity against the reference at one load."""

    arm: str
    c: int
    percent: Value
    verdict: Verdict
    n: int  # block pairs

    @property
    def ratio(self) -> float:
        """Arm over reference."""
        return float(self.percent.value)


def verdict(ratio: float, low: float | None = None, high: float | None = None) -> Verdict:
    """``same`` when the interval holds 1 or, without one, by the convention of `NEAR`."""
    if low is not None and np.isfinite(low):
        level = low <= 1 <= high
    else:
        level = abs(math.log(ratio)) < math.log1p(NEAR)
    return "same" if level else ("gain" if ratio > 1 else "loss")


def rounded_verdict(ratio: float, low: float, high: float) -> Verdict:
    """Verdict on a ratio that was printed: ``same`` when its digits allow a change under `NEAR`.

    ``low`` and ``high`` are the smallest and largest ratio that the digits allow.
    """
    if verdict(low) == "same" or verdict(high) == "same" or low < 1 < high:
        return "same"
    return verdict(ratio)

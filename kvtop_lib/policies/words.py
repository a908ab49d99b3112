"""What a run says about a policy, in words that follow from the numbers either way."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from kvtop_lib.policies.noise import NOT_MEASURED, Noise

HEADS = {True: "the claim holds", False: "the claim does not hold", None: "the claim is not shown"}


@dataclass(frozen=True)
class Claim:
    """The claim that a policy is as good as the best fixed width, and better than any single one.

    Attributes
    ----------
    every : within noise of the best fixed width, or above it, at every load.
    whole : better than every single fixed width over all loads; False only where one is better.
    every_text, whole_text : both in words.

    None: the run does not show it, for want of points or of a known noise, or since a difference
    is within noise.
    """

    arm: str
    title: str
    every: bool | None
    whole: bool | None
    every_text: str
    whole_text: str

    @property
    def holds(self) -> bool | None:
        """Both; False when either is false."""
        both = (self.every, self.whole)
        return False if False in both else None if None in both else True

    def __str__(self) -> str:
        return f"{self.title}: {HEADS[self.holds]}. {self.every_text}. {self.whole_text}."


def claim(against: pd.DataFrame, ranged: pd.DataFrame, arm: str, noise: Noise) -> Claim:
    """The claim about one policy.

    Parameters
    ----------
    against, ranged
        `kvtop_lib.policies.by_load`, `kvtop_lib.policies.over_range`.
    arm
        The policy.
    noise
        As for these.
    """
    own, others = against[against["arm"] == arm], ranged[ranged["arm"] == arm]
    every, every_text = _every(own, noise)
    whole, whole_text = _whole(others)
    return Claim(arm, str(own["title"].iloc[0]), every, whole, every_text, whole_text)


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _at(rows: pd.DataFrame, numbers: bool = True) -> str:
    """``c = 8 (-15.0 %), c = 16``."""
    said = [
        f"c = {row.c}" + (f" ({_percent(row.mean)})" if numbers and row.mean == row.mean else "")
        for row in rows[["c", "mean"]].itertuples(index=False)
    ]
    return ", ".join(said)


def _every(own: pd.DataFrame, noise: Noise) -> tuple[bool | None, str]:
    by = {v: own[own["verdict"] == v] for v in ("lower", "higher", "unknown", NOT_MEASURED)}
    known = own[own["mean"].notna()]
    if len(by["lower"]):
        return False, f"Lower than the best fixed width at {_at(by['lower'])}"
    if known.empty:
        return None, "No load has both it and a fixed width"
    if len(by["unknown"]):
        text = (
            "Nothing tells a difference from noise; its ratio to the best fixed width is "
            f"{_at(known)}"
        )
        return None, text
    if len(by[NOT_MEASURED]):
        text = (
            f"Not known at {_at(by[NOT_MEASURED], numbers=False)}, where its point or that of a "
            "fixed width is missing; not lower than the best fixed width at the other loads"
        )
        return None, text
    text = f"Within noise of the best fixed width at each of {len(own)} loads ({_at(own)})"
    if len(by["higher"]):
        text += f", above it at {_at(by['higher'])}"
    if (low := own["low"].min()) == low:
        text += f"; the lowest interval reaches down to {_percent(low)}"
    elif noise.band:
        text += f"; one block cannot tell ratios from {_percent(1 / noise.band)} on from noise"
    return True, text


def _whole(others: pd.DataFrame) -> tuple[bool | None, str]:
    if len(part := others[~others["whole"]]):
        names = ", ".join(f"{r.other_title} ({r.loads})" for r in part.itertuples())
        return None, f"Not all loads have both it and {names}: nothing is said over the range"
    words = {
        "higher": "better than", "none": "not told from", "lower": "worse than",
        "unknown": "with a noise that is not known, against",
    }  # fmt: skip
    said = []
    for verdict, text in words.items():
        rows = others[others["verdict"] == verdict].itertuples()
        if names := [f"{r.other_title} ({_percent(r.ratio)}{_interval(r)})" for r in rows]:
            said.append(f"{text} {', '.join(names)}")
    found = set(others["verdict"])
    holds = False if "lower" in found else True if found == {"higher"} else None
    return holds, "Over all loads " + "; ".join(said)


def _interval(row) -> str:
    if row.low != row.low:
        return ""
    return f", interval {_percent(row.low)} to {_percent(row.high)}"

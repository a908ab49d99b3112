"""A run as the note reads it: frames, the arms' roles, and values that know their source."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from kvtop_lib import stats, tables
from kvtop_lib.note.prose import NBSP, Value, percent, quantity
from kvtop_lib.store import Run, read_json
from kvtop_lib.terms import KvtopError

NEAR = 0.02
"""Without repeats a change smaller than this is called level; a convention, since one block cannot
tell how far another would differ."""

Verdict = Literal["gain", "loss", "same"]


@dataclass(frozen=True)
class Change:
    """Change of one quantity against the baseline at one load."""

    arm: str
    c: int
    percent: Value
    verdict: Verdict
    n: int  # block pairs

    @property
    def ratio(self) -> float:
        """Arm over baseline."""
        return float(self.percent.value)


def _lines(numbers: list[int]) -> str:
    return ",".join(f"L{n}" for n in numbers)


class Evidence:
    """Frames and values of one run.

    Parameters
    ----------
    run : Run
        An opened run folder.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.points = tables.points(run)
        self.arms = tables.arms(run)
        self.titles = tables.titles(run)
        counted = set(self.points["line"])
        self.records = [r for r in run.lines() if r["line"] in counted]

    @classmethod
    def load(cls, folder: Path | str) -> Evidence:
        """Read a run folder (`kvtop_lib.store.Run` and its errors)."""
        return cls(Run(Path(folder)))

    # -- roles ----------------------------------------------------------------------------
    @cached_property
    def loads(self) -> list[int]:
        """Measured closed-loop loads, rising."""
        return sorted(int(c) for c in self.points["c"].unique())

    @cached_property
    def drafting(self) -> list[str]:
        """Arms that draft, in the run's order."""
        drafts = {a for a, p in self.arms.items() if tables.pick(p, "draft.method") != "none"}
        return [a for a in self.arms if a in drafts - {tables.BASELINE}]

    @cached_property
    def primary(self) -> str | None:
        """The arm that headline and core result speak of: the first MTP arm of the run's order,
        else the first that drafts; chosen by the profile, never by the outcome."""
        mtp = [a for a in self.drafting if tables.pick(self.arms[a], "draft.method") == "mtp"]
        return (mtp or self.drafting or [None])[0]

    def by_load(self, column: str) -> pd.DataFrame:
        """`tables.by_load` of one column."""
        return tables.by_load(self.points, column)

    @cached_property
    def ratios(self) -> pd.DataFrame:
        """`tables.ratios` of throughput."""
        return tables.ratios(self.points)

    @cached_property
    def noise(self) -> stats.Floor:
        """What the A/A pair showed, if one was run."""
        try:
            pairs = stats.block_ratios(self.points, "output_tok_s", tables.BASELINE)
        except KvtopError:  # the baseline has no point
            return stats.noise_floor(pd.DataFrame({"arm": []}))
        return stats.noise_floor(stats.summarise(pairs))

    # -- values with a source -------------------------------------------------------------
    def title(self, arm: str) -> Value:
        """Title of an arm."""
        text = self.arms.get(arm, {}).get("title") or arm
        rank = list(self.arms).index(arm) if arm in self.arms else 0
        return Value(text, f"manifest.json#arms.{arm}.title", cls=f"v arm arm{rank}")

    def load_value(self, c: int) -> Value:
        """``c = 8``."""
        line = int(self.points.loc[self.points["c"] == c, "line"].min())
        return Value(f"c{NBSP}={NBSP}{c}", f"results.jsonl#L{line}:c", float(c))

    def mean(self, arm: str, c: int, column: str, unit: str, scale: float = 1.0) -> Value | None:
        """Mean over blocks, None when no block has it; ``scale`` 1000 shows seconds as ms."""
        frame = self.by_load(column)
        row = frame[(frame["arm"] == arm) & (frame["c"] == c)]
        if row.empty or not row["n"].iloc[0]:
            return None
        mean, lines = row["mean"].iloc[0], row["lines"].iloc[0]
        source = f"results.jsonl#{_lines(lines)}:mean({tables.FIELDS[column]})"
        return Value(quantity(mean * scale, unit), source, mean)

    def change(self, arm: str, c: int, column: str = "output_tok_s") -> Change | None:
        """Change against the baseline, None when no block pair has both points."""
        frame = self.ratios if column == "output_tok_s" else tables.ratios(self.points, column)
        if frame.empty:
            return None
        row = frame[(frame["arm"] == arm) & (frame["c"] == c)]
        if row.empty or not row["n"].iloc[0]:
            return None
        ratio, low, high, values, pairs = row[["mean", "low", "high", "values", "lines"]].iloc[0]
        where = ",".join(f"L{a}/L{b}" for a, b in pairs)
        source = f"results.jsonl#{where}:ratio({tables.FIELDS[column]})"
        value = Value(percent(ratio), source, ratio)
        return Change(arm, c, value, verdict(ratio, low, high), len(values))

    def changes(self, arm: str, column: str = "output_tok_s") -> list[Change]:
        """Changes of an arm over rising load, where measured."""
        return [x for c in self.loads if (x := self.change(arm, c, column))]

    def count(self, *statuses: str) -> Value:
        """Points that count (last attempts) with one of the statuses; all without an argument."""
        frame = self.points
        n = int(frame["status"].isin(statuses).sum()) if statuses else len(frame)
        what = f"status={'|'.join(statuses)}" if statuses else "*"
        return Value(str(n), f"results.jsonl:count({what})", float(n))

    def field(self, path: str, unit: str = "", text: str | None = None) -> Value | None:
        """A field of the manifest, None when it was not recorded."""
        value = tables.pick(self.run.manifest, path)
        if value is None or value == "":
            return None
        number = float(value) if isinstance(value, int | float) else None
        whole = isinstance(value, int)  # a seed keeps all its digits
        shown = text or (f"{value:g}" if number is not None and not whole else str(value))
        return Value(f"{shown}{NBSP}{unit}".strip(), f"manifest.json#{path}", number)

    def deployment(self, arm: str) -> tuple[str, dict[str, Any]]:
        """Folder and record of an arm's probe deployment, ("", {}) without one."""
        file = self.run.path / arm / "deploy" / "deployment.json"
        with contextlib.suppress(KvtopError):
            return f"{arm}/deploy", read_json(file)
        return "", {}


def verdict(ratio: float, low: float | None = None, high: float | None = None) -> Verdict:
    """``same`` when the interval holds 1 or, without one, by the convention of `NEAR`."""
    if low is not None and np.isfinite(low):
        level = low <= 1 <= high
    else:
        level = abs(math.log(ratio)) < math.log1p(NEAR)
    return "same" if level else ("gain" if ratio > 1 else "loss")

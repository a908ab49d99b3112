"""A run as the note reads it: frames, the arms' roles, and values that know their source."""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from kvtop_lib import stats, tables
from kvtop_lib.note.change import Change, Verdict, verdict
from kvtop_lib.note.cite import Cited
from kvtop_lib.note.derived import Derived
from kvtop_lib.note.prose import NBSP, Value, percent, quantity
from kvtop_lib.note.readable import ReadableRun, checked_manifest
from kvtop_lib.store import Run, read_json
from kvtop_lib.terms import KvtopError

ISOLATED = ("mtp_width_off", "mtp_width_on")
"""Arms of one deployment that differ in the draft width alone: not drafting, drafting."""

NEVER_DRAFTS = "fixed:1"
"""Policy of an arm whose drafter is deployed and never asked."""


class Evidence(Cited, Derived):
    """Frames and values of one run.

    Parameters
    ----------
    run : Run
        An opened run folder.
    reference : str
        The arm that the others are compared with.
    only : tuple of str
        Arms to look at; all when empty.
    axis : str, optional
        Kind of load, as `tables.points`.

    Raises
    ------
    KvtopError
        When the manifest is not one, or the run holds no point.
    """

    quoted = False  # whether the numbers are a published table's
    digits: int | None = None  # decimals of percentages; None: `prose.percent` decides

    def __init__(
        self,
        run: Run,
        reference: str = tables.BASELINE,
        only: tuple[str, ...] = (),
        axis: str | None = None,
    ) -> None:
        self.run, self.reference = run, reference
        self.manifest = checked_manifest(run)
        known, points = tables.arms(run), tables.points(run, axis)
        self.every_arm = known
        self.arms = {a: known[a] for a in known if not only or a in only}
        self.points = points[points["arm"].isin(only)] if only else points
        self.axis = str(points["axis"].iloc[0])
        whole = run.results()  # of every kind of load
        self.whole = whole[whole["arm"].isin(only)] if only else whole
        self.titles = [p.get("title") or a for a, p in self.arms.items()]
        counted = set(self.whole["line"])
        self.records = [r for r in run.lines() if r["line"] in counted]

    @classmethod
    def load(cls, folder: Path | str) -> Evidence:
        """Read a run folder (`kvtop_lib.store.Run` and its errors)."""
        return cls(ReadableRun(Path(folder)))

    # -- roles ----------------------------------------------------------------------------
    @cached_property
    def loads(self) -> list[float]:
        """Measured loads of one kind, rising: lanes, or session starts per second."""
        return sorted(self.points["c"].unique().tolist())

    @cached_property
    def drafting(self) -> list[str]:
        """Arms that draft, in the run's order; not those whose acceptance is simulated."""
        return [
            a
            for a, p in self.arms.items()
            if a != self.reference
            and tables.pick(p, "draft.method") != "none"
            and tables.pick(p, "draft.policy") != NEVER_DRAFTS
            and tables.pick(p, "draft.simulated_accept_len") is None
        ]

    @cached_property
    def primary(self) -> str | None:
        """The arm that headline and core result speak of: the first MTP arm of the run's order,
        else the first that drafts; chosen by the profile, never by the outcome."""
        mtp = [a for a in self.drafting if tables.pick(self.arms[a], "draft.method") == "mtp"]
        return (mtp or self.drafting or [None])[0]

    @cached_property
    def rates(self) -> Evidence | None:
        """The points by arrival rate, None where the run has none."""
        if self.axis == stats.RATES:
            return self
        if self.quoted or stats.RATES not in stats.axes(self.whole):
            return None
        return Evidence(self.run, self.reference, axis=stats.RATES)

    @cached_property
    def isolation(self) -> Evidence | None:
        """The pair of arms that differ in the draft width alone, None when it was not run."""
        if not set(ISOLATED) <= set(self.arms) & set(self.points["arm"]):
            return None
        pair = Evidence(self.run, ISOLATED[0], ISOLATED, self.axis)
        return pair if pair.changes(ISOLATED[1]) else None

    @cached_property
    def noise(self) -> stats.Floor:
        """What the A/A pair showed, if one was run."""
        try:
            pairs = stats.block_ratios(self.points, "output_tok_s", self.reference)
        except KvtopError:  # the baseline has no point
            return stats.noise_floor(pd.DataFrame({"arm": []}))
        return stats.noise_floor(stats.summarise(pairs))

    # -- values with a source -------------------------------------------------------------
    @property
    def name(self) -> Value:
        """Name that the run was measured under, else its folder's."""
        return self.field("run") or Value(self.run.name, "folder")

    def title(self, arm: str) -> Value:
        """Title of an arm."""
        text = self.arms.get(arm, {}).get("title") or arm
        rank = list(self.arms).index(arm) if arm in self.arms else 0
        return Value(text, self.cite_field(f"arms.{arm}.title"), cls=f"v arm arm{rank}")

    def load_value(self, c: float) -> Value:
        """``c = 8``, or ``0.50 starts/s``."""
        line = int(self.points.loc[self.points["c"] == c, "line"].min())
        return self.load_text(c, (self.cite_load, self.cite_rate)[self.axis == stats.RATES](line))

    def load_text(self, c: float, source: str) -> Value:
        """A load in the words of `load_value`, whatever names it."""
        rate = f"{c:.2f}" if round(c, 2) == c else f"{c:g}"
        text = f"{rate}{NBSP}starts/s" if self.axis == stats.RATES else f"c{NBSP}={NBSP}{c:g}"
        return Value(text, source, float(c))

    def mean(self, arm: str, c: int, column: str, unit: str, scale: float = 1.0) -> Value | None:
        """Mean over blocks, None when no block has it; ``scale`` 1000 shows seconds as ms."""
        frame = self.by_load(column)
        row = frame[(frame["arm"] == arm) & (frame["c"] == c)]
        if row.empty or not row["n"].iloc[0]:
            return None
        mean, lines = row["mean"].iloc[0], row["lines"].iloc[0]
        return Value(quantity(mean * scale, unit), self.cite(arm, column, lines), mean)

    def change(self, arm: str, c: int, column: str = "output_tok_s") -> Change | None:
        """Change against the baseline, None when no block pair has both points."""
        frame = self._table(tables.ratios, column, self.reference)
        if frame.empty:
            return None
        row = frame[(frame["arm"] == arm) & (frame["c"] == c)]
        if row.empty or not row["n"].iloc[0]:
            return None
        ratio, values, pairs = row[["mean", "values", "lines"]].iloc[0]
        value = Value(percent(ratio, self.digits), self.cite_ratio(arm, column, pairs), ratio)
        return Change(arm, c, value, self.judge(arm, column, row.iloc[0]), len(values))

    def judge(self, arm: str, column: str, row: pd.Series) -> Verdict:
        """Verdict on a row of `tables.ratios`."""
        return verdict(row["mean"], row["low"], row["high"])

    def inverse(self, change: Change, column: str = "output_tok_s") -> Value:
        """The same change seen from the arm: what going back to the reference gives."""
        source = self.cite_inverse(change, column)
        return Value(percent(1 / change.ratio, self.digits), source, 1 / change.ratio)

    def changes(self, arm: str, column: str = "output_tok_s") -> list[Change]:
        """Changes of an arm over rising load, where measured."""
        return [x for c in self.loads if (x := self.change(arm, c, column))]

    def count(self, *statuses: str) -> Value:
        """Points that count (last attempts) with one of the statuses; all without an argument."""
        frame = self.whole
        n = int(frame["status"].isin(statuses).sum()) if statuses else len(frame)
        what = f"status={'|'.join(statuses)}" if statuses else "*"
        return Value(str(n), self.cite_count(what), float(n))

    def field(self, path: str, unit: str = "", text: str | None = None) -> Value | None:
        """A field of the manifest, None when it was not recorded."""
        value = tables.pick(self.manifest, path)
        if value is None or value == "":
            return None
        number = float(value) if isinstance(value, int | float) else None
        shown = text or (f"{value:g}" if isinstance(value, float) else str(value))  # a seed: whole
        return Value(f"{shown}{NBSP}{unit}".strip(), self.cite_field(path), number)

    def remarks(self, figure: str) -> list[Markup]:
        """What a reader of a figure must know about where its numbers come from."""
        return []

    def deployment(self, arm: str) -> tuple[str, dict[str, Any]]:
        """Folder and record of an arm's probe deployment, ("", {}) without one."""
        file = self.run.path / arm / "deploy" / "deployment.json"
        with contextlib.suppress(KvtopError):
            return f"{arm}/deploy", read_json(file)
        return "", {}

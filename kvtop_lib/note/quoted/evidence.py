"""A published table as the note reads it: the same frames, every value cited to a printed cell."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.note.change import Change, Verdict, rounded_verdict
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import NBSP, Value, listing, percent, say
from kvtop_lib.params import load_published, params_path, read_published
from kvtop_lib.params.published import Fact, Published
from kvtop_lib.terms import KvtopError

PREFIX = "published:"


def is_published(target: Path | str) -> bool:
    """Whether a target names published evidence: ``published:NAME`` or a YAML file."""
    return str(target).startswith(PREFIX) or Path(target).suffix in (".yaml", ".yml")


class QuotedEvidence(Evidence):
    """Frames and values of one sheet of a published source."""

    quoted = True

    def __init__(self, run: tables.QuotedRun) -> None:
        super().__init__(run, run.table.reference)
        self.source = run.source
        self.origin, self.digits = run.csv.name, run.table.decimals

    @classmethod
    def load(cls, target: Path | str) -> QuotedEvidence:
        """Read ``published:NAME`` (of ``params/published``) or a YAML file that lies anywhere.

        Raises
        ------
        KvtopError
            As `kvtop_lib.params.load_published` and `kvtop_lib.tables.QuotedRun`.
        """
        if str(target).startswith(PREFIX):
            name = str(target).removeprefix(PREFIX)
            return cls(tables.QuotedRun(load_published(name), params_path(Published, name)))
        file = Path(target)
        if not file.is_file():
            raise KvtopError(f"there is no file {file}; name one, or {PREFIX}NAME")
        return cls(tables.QuotedRun(read_published(file), file))

    @cached_property
    def isolation(self) -> QuotedEvidence | None:
        """The sheet whose arms differ in drafting alone, None without one."""
        for name, sheet in self.source.sheets.items():
            if sheet.isolated and name != self.run.sheet:
                return QuotedEvidence(tables.QuotedRun(self.source, self.run.path, name))
        return None

    @property
    def derived(self) -> list[str]:
        """Arms of which only ratios were printed."""
        return [a for a in self.arms if self.run.columns(a).output_tok_s is None]

    def by_load(self, column: str) -> pd.DataFrame:
        """As `tables.by_load`; throughput with ``derived``, true for a printed ratio's arm."""
        frame = super().by_load(column)
        if column == "output_tok_s" and self.derived:
            return frame.assign(derived=frame["arm"].isin(self.derived))
        return frame

    def judge(self, arm: str, column: str, row: pd.Series) -> Verdict:
        """Verdict that the printed digits allow."""
        return rounded_verdict(row["mean"], *self.run.ratio_range(arm, column, row["lines"][0][0]))

    def mean(self, arm: str, c: int, column: str, unit: str, scale: float = 1.0) -> Value | None:
        """A printed number with its own digits, a derived one with the reference's."""
        found = super().mean(arm, c, column, unit, scale)
        if found is None or column not in tables.MEASURES:
            return found
        line = int(self.points.loc[self.points["c"] == c, "line"].min())
        name = getattr(self.run.columns(arm), tables.MEASURES[column])
        cell = self.run.cell(line, name) or self._reference_cell(line)
        places = max(0, round(-np.log10(2 * cell.half)))
        return Value(f"{found.value:,.{places}f}{NBSP}{unit}", found.source, found.value)

    def _reference_cell(self, line: int) -> tables.Cell:
        return self.run.cell(line, self.run.columns(self.reference).output_tok_s)

    def change(self, arm: str, c: int, column: str = "output_tok_s") -> Change | None:
        """Change that the table gives, else the single one that the source states."""
        if column in self.points and (found := super().change(arm, c, column)):
            return found
        stated = [f for f in self.source.facts if (f.arm, f.c, f.metric) == (arm, c, column)]
        return self.fact(stated[0]) if stated else None

    def fact(self, fact: Fact) -> Change:
        """A single published change."""
        ratio, half = 1 + fact.change_pct / 100, 0.005 * 10.0**-fact.decimals
        where = f"{self.run.path.name}#change(facts.{self.source.facts.index(fact)}.change_pct)"
        value = Value(percent(ratio, fact.decimals), where, ratio)
        judged = rounded_verdict(ratio, ratio - half, ratio + half)
        return Change(fact.arm, fact.c, value, judged, 1)

    def remarks(self, figure: str) -> list[Markup]:
        """That ratios were printed and nothing else, and the finer ones of single loads."""
        if figure == "throughput" and self.derived:
            return [
                say(
                    "For {arms} only ratios to {base} were published, in whole percent; the open "
                    "markers are its throughput times those ratios.",
                    arms=listing([self.title(a) for a in self.derived]),
                    base=self.title(self.reference),
                )
            ]
        if figure != "ratio":
            return []
        whole = say("The ratios are the published ones, in whole percent.")
        found = [whole] if self.derived else []
        finer = [self.fact(f) for f in self.source.facts if f.finer]
        for c in dict.fromkeys(x.c for x in finer):
            at = [say("{p} ({a})", p=x.percent, a=self.title(x.arm)) for x in finer if x.c == c]
            here = self.load_value(c)
            found.append(say("At {c} the text is finer: {at}.", c=here, at=listing(at)))
        return found

    # -- where a value stands (`kvtop_lib.tables.quoted`) ---------------------------------
    def cite(self, arm: str, column: str, lines: list[int]) -> str:
        """The cells of a number."""
        return self.run.cell_source(arm, column, lines[0])

    def cite_ratio(self, arm: str, column: str, pairs: list[tuple[int, int]]) -> str:
        """The cells of a ratio."""
        return self.run.ratio_source(arm, column, pairs[0][0])

    def cite_inverse(self, change: Change, column: str) -> str:
        """The cells of a ratio, the other way round."""
        where, _, what = change.percent.source.partition(":")
        over, slash, under = what.partition("/")
        return f"{where}:{under}/{over}" if slash else f"{where}:1/{what}"

    def cite_load(self, line: int) -> str:
        """The cell of a load."""
        return f"{self.origin}#L{line}:concurrency"

    def cite_field(self, path: str) -> str:
        """A field of the YAML file."""
        return self.run.where(path)

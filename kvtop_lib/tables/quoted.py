"""A sheet of a published source, read like a run of our own: same frames, same figures, same note.

A throughput that was not printed is the reference's times the printed ratio; its row says so
(``derived``), and sources say which cells a number was worked out from::

    X.csv#L5:baseline_output_tok_s                            one cell
    X.csv#L5:baseline_output_tok_s*change(mtp_pct)            reference times 1 + percent / 100
    X.csv#L5:mtp_output_tok_s/baseline_output_tok_s           cell over cell
    X.csv#L5:change(mtp_pct)                                  1 + percent / 100
    X.yaml#sheets.sweep.profile.window_s                      a field of the YAML file
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kvtop_lib.params import Published
from kvtop_lib.params.published import Columns, Sheet
from kvtop_lib.terms import KvtopError

_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")
LOAD = "concurrency"
MEASURES = {"output_tok_s": "output_tok_s", "per_request_tok_s": "per_request_tok_s"}
"""Metric column of a results frame -> field of `Columns`."""


@dataclass(frozen=True)
class Cell:
    """A printed number and half a unit of its last digit."""

    value: float
    half: float


class QuotedRun:
    """One sheet of a published source with the interface of `kvtop_lib.store.Run`.

    Parameters
    ----------
    source : Published
        The source.
    file : Path
        Its YAML file; CSV files lie beside it.
    sheet : str, optional
        Name of the sheet; the first one when not given.

    Raises
    ------
    KvtopError
        When the CSV cannot be read, lacks a column or holds a cell that is no number.
    """

    def __init__(self, source: Published, file: Path, sheet: str | None = None) -> None:
        self.source, self.path = source, Path(file)
        self.sheet = sheet or next(iter(source.sheets))
        if self.sheet not in source.sheets:
            raise KvtopError(f"{file} has no sheet {sheet!r}; it has: {', '.join(source.sheets)}")
        self.csv = self.path.parent / self.table.file
        self.rows = _rows(self.csv, self._columns())
        if not any(self._record(self.table.reference, line) for line in self.rows):
            raise KvtopError(f"{self.csv} holds no number of {self.table.reference!r}")

    @property
    def table(self) -> Sheet:
        """The sheet."""
        return self.source.sheets[self.sheet]

    @property
    def name(self) -> str:
        """Run id of the source, else the source's id."""
        return self.table.run or self.source.id

    def columns(self, arm: str) -> Columns:
        """Columns of an arm."""
        return self.table.arms[arm].columns

    def _columns(self) -> list[str]:
        used = [LOAD]
        for arm in self.table.arms.values():
            used += [c for c in arm.columns.model_dump().values() if c]
        return used

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What a manifest holds, as far as stated: the sheet's keys over the source's."""
        whole = self.source.model_dump(mode="json")
        sheet = whole.pop("sheets")[self.sheet]
        return {**whole, **sheet}

    def where(self, field: str) -> str:
        """Address of a field of `manifest` in the YAML file."""
        inside = field.split(".")[0] in type(self.table).model_fields
        return f"{self.path.name}#{f'sheets.{self.sheet}.' if inside else ''}{field}"

    def lines(self) -> list[dict[str, Any]]:
        """One record per arm and row of the CSV that has its numbers."""
        return self.results().to_dict("records")

    def results(self) -> pd.DataFrame:
        """Columns of `kvtop_lib.store.Run.results`, ``per_request_tok_s`` and ``derived``."""
        found = [self._record(arm, line) for arm in self.table.arms for line in self.rows]
        return pd.DataFrame([row for row in found if row])

    def cell(self, line: int, column: str | None) -> Cell | None:
        """A number of the CSV, None where the cell is empty or there is no such column."""
        return self.rows[line].get(column) if column else None

    def _record(self, arm: str, line: int) -> dict[str, Any] | None:
        columns, c = self.columns(arm), self.cell(line, LOAD)
        speed, change = self.cell(line, columns.output_tok_s), self.cell(line, columns.change_pct)
        base = self.cell(line, self.columns(self.table.reference).output_tok_s)
        if speed is None and (change is None or base is None):
            return None
        each = self.cell(line, columns.per_request_tok_s)
        return {
            "arm": arm, "block": 1, "workload": self.sheet, "load": f"c{c.value:.0f}",
            "c": int(c.value), "attempt": 1, "status": "ok", "reason": "", "line": line,
            "output_tok_s": speed.value if speed else base.value * (1 + change.value / 100),
            "per_request_tok_s": each.value if each else None, "derived": speed is None,
        }  # fmt: skip

    # -- sources --------------------------------------------------------------------------
    def cell_source(self, arm: str, measure: str, line: int) -> str:
        """Where a number of the results frame stands."""
        columns = self.columns(arm)
        if measure == "output_tok_s" and columns.output_tok_s is None:
            base = self.columns(self.table.reference).output_tok_s
            return f"{self.csv.name}#L{line}:{base}*change({columns.change_pct})"
        return f"{self.csv.name}#L{line}:{getattr(columns, MEASURES[measure])}"

    def ratio_source(self, arm: str, measure: str, line: int) -> str:
        """Where a ratio to the reference stands, or the cells that it is made of."""
        columns, base = self.columns(arm), self.columns(self.table.reference)
        if measure == "output_tok_s" and columns.output_tok_s is None:
            return f"{self.csv.name}#L{line}:change({columns.change_pct})"
        over, under = (getattr(x, MEASURES[measure]) for x in (columns, base))
        return f"{self.csv.name}#L{line}:{over}/{under}"

    def ratio_range(self, arm: str, measure: str, line: int) -> tuple[float, float]:
        """Smallest and largest ratio to the reference that the printed digits allow."""
        columns, base = self.columns(arm), self.columns(self.table.reference)
        if measure == "output_tok_s" and columns.output_tok_s is None:
            change = self.cell(line, columns.change_pct)
            return tuple(1 + (change.value + s * change.half) / 100 for s in (-1, 1))
        over, under = (self.cell(line, getattr(x, MEASURES[measure])) for x in (columns, base))
        low = (over.value - over.half) / (under.value + under.half)
        return low, (over.value + over.half) / (under.value - under.half)


def _rows(file: Path, wanted: list[str]) -> dict[int, dict[str, Cell]]:
    """Numbers of the wanted columns by line of the file; empty cells are left out."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as f:
            found = list(csv.reader(f))
    except OSError as e:
        raise KvtopError(f"{file} cannot be read: {e.strerror}") from e
    except (UnicodeDecodeError, csv.Error) as e:
        raise KvtopError(f"{file} is no CSV in UTF-8: {e}") from e
    head = [name.strip() for name in found[0]] if found else []
    if missing := [name for name in wanted if name not in head]:
        raise KvtopError(f"{file} has no column {missing[0]!r}; it has: {', '.join(head)}")
    rows: dict[int, dict[str, Cell]] = {}
    seen: set[float] = set()
    for line, cells in enumerate(found[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(head):
            raise KvtopError(f"{file}, line {line}: {len(cells)} cells under {len(head)} columns")
        named = dict(zip(head, cells, strict=True))
        rows[line] = {n: _cell(file, line, t) for n in wanted if (t := named[n].strip())}
        c = rows[line].get(LOAD)
        if c is None or c.value < 1 or c.value != int(c.value) or c.value in seen:
            raise KvtopError(f"{file}, line {line}: {LOAD} must be a new whole number from 1 on")
        seen.add(c.value)
    if not rows:
        raise KvtopError(f"{file} holds no rows; a header line and at least one row are needed")
    return rows


def _cell(file: Path, line: int, text: str) -> Cell:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise KvtopError(f"{file}, line {line}: {text!r} is not a plain decimal number")
    return Cell(float(text), 0.5 * 10.0 ** -len(match[1] or ""))

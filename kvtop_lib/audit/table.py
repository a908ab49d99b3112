"""A published table: output and per-request speed by arm and concurrency, as printed."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from kvtop_lib.terms import KvtopError

TOTAL, EACH = "output_tok_s", "per_request_tok_s"
QUOTED = {"output": TOTAL, "per_request": EACH}
_NUMBER = re.compile(r"[+-]?(\d{1,15})(?:\.(\d{1,15}))?", re.ASCII)
_COUNT = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)


@dataclass(frozen=True)
class Number:
    """A printed number: it stands for anything that rounds to it."""

    value: float
    half: float  # half a unit of the last printed digit

    @property
    def low(self) -> float:
        """Smallest number that is printed so."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """Largest number that is printed so."""
        return self.value + self.half


@dataclass(frozen=True)
class Table:
    """A table as published.

    Attributes
    ----------
    arms : names, in the order of their columns; the first is what changes are relative to.
    cells : (arm, concurrency) -> (output, per-request), tokens per second.
    quoted : (``output`` or ``per_request``, concurrency) -> quoted change, percent.
    """

    arms: tuple[str, ...]
    cells: dict[tuple[str, int], tuple[Number, Number]]
    quoted: dict[tuple[str, int], Number]

    def loads(self, arm: str) -> list[int]:
        """Concurrencies of an arm, ascending."""
        return sorted(c for a, c in self.cells if a == arm)


def read_table(file: Path | str) -> Table:
    """Read a CSV with one row per concurrency, or per arm and concurrency.

    Columns of the first kind: ``concurrency``, and for each arm ``<arm>_output_tok_s`` and
    ``<arm>_per_request_tok_s``; of the second: ``arm``, ``concurrency``, ``output_tok_s``,
    ``per_request_tok_s``. Quoted changes may stand in ``quoted_output_change_pct`` and
    ``quoted_per_request_change_pct`` of the first kind. Other columns are not read.

    Raises
    ------
    KvtopError
        When the file cannot be read, a column is missing or a cell is not what it should be.
    """
    file = Path(file)
    rows, names = _rows(file)
    if "concurrency" not in names:
        raise KvtopError(f"{file} has no column 'concurrency'; it has: {', '.join(names)}")
    if "arm" in names:
        missing = [n for n in (TOTAL, EACH) if n not in names]
        if missing:
            raise KvtopError(f"{file} has no column {missing[0]!r}; it has: {', '.join(names)}")
        arms = tuple(dict.fromkeys(row["arm"].strip() for _, row in rows))
        prefixes = {arm: "" for arm in arms}
    else:
        arms = tuple(n.removesuffix(f"_{TOTAL}") for n in names if n.endswith(f"_{TOTAL}"))
        arms = tuple(a for a in arms if f"{a}_{EACH}" in names)
        prefixes = {arm: f"{arm}_" for arm in arms}
        if not arms:
            raise KvtopError(
                f"{file} has no arm with both <arm>_{TOTAL} and <arm>_{EACH}, "
                "so the number of active requests cannot be computed"
            )
    cells: dict[tuple[str, int], tuple[Number, Number]] = {}
    quoted: dict[tuple[str, int], Number] = {}
    for line, row in rows:
        c = _load(file, line, row["concurrency"])
        for arm in (row["arm"].strip(),) if "arm" in names else arms:
            texts = [row[prefixes[arm] + n].strip() for n in (TOTAL, EACH)]
            if not any(texts):
                continue  # an arm that was not measured at this load
            if (arm, c) in cells:
                raise KvtopError(f"{file}, line {line}: {arm!r} at concurrency {c} stands twice")
            total, each = (_speed(file, line, t) for t in texts)
            cells[arm, c] = (total, each)
        for what in QUOTED:
            if text := (row.get(f"quoted_{what}_change_pct") or "").strip():
                quoted[what, c] = _number(file, line, text)
    if not cells:
        raise KvtopError(f"{file} holds no numbers")
    return Table(arms, cells, quoted)


def _rows(file: Path) -> tuple[list[tuple[int, dict[str, str]]], list[str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as f:
            lines = csv.reader(f)
            found = [(lines.line_num, row) for row in lines if any(cell.strip() for cell in row)]
    except UnicodeDecodeError as e:
        raise KvtopError(f"{file} is not UTF-8 text; save it as CSV") from e
    except csv.Error as e:
        raise KvtopError(f"{file} is no CSV: {e}") from e
    if len(found) < 2:
        raise KvtopError(f"{file} holds no rows; a header line and at least one row are needed")
    names = [n.strip() for n in found[0][1]]
    if doubled := [n for n in names if names.count(n) > 1]:
        raise KvtopError(f"{file} has the column {doubled[0]!r} twice")
    for number, row in found[1:]:
        if len(row) != len(names):
            raise KvtopError(
                f"{file}, line {number}: {len(row)} cells under {len(names)} columns; "
                "numbers are written without a thousands separator"
            )
    return [(line, dict(zip(names, row, strict=True))) for line, row in found[1:]], names


def _number(file: Path, line: int, text: str) -> Number:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise KvtopError(
            f"{file}, line {line}: {text!r} is not a plain decimal number of up to 15 digits"
        )
    return Number(float(text), 0.5 * 10.0 ** -len(match[2] or ""))


def _speed(file: Path, line: int, text: str) -> Number:
    if not text:
        raise KvtopError(f"{file}, line {line}: one of the two speeds is missing")
    found = _number(file, line, text)
    if found.low <= 0 or not math.isfinite(found.value):
        raise KvtopError(f"{file}, line {line}: a speed of {text} tok/s cannot be audited")
    return found


def _load(file: Path, line: int, text: str) -> int:
    if not _COUNT.fullmatch(text.strip()):
        raise KvtopError(
            f"{file}, line {line}: concurrency {text[:40]!r} is no whole number from 1 to 999999999"
        )
    return int(text)

"""A trace file as numbered records, whatever its layout: JSONL, one JSON document, or CSV."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.readers.fields import Bad

PROBED = 20
"""Records that are looked at to find the layout and the format: the first may be broken."""

_LIST = re.compile(r"\s*\[\s*([\[{\]]|$)")  # begins a list, whose lines may look like JSONL
_BYTE = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte of no text


def utf8(name: str) -> str:
    """A file's name with ``?`` for the bytes that are no UTF-8, which no trace can hold."""
    return name.encode("utf-8", "replace").decode()


@dataclass
class Rows:
    """Records of one file with their line numbers, and what was passed over in it."""

    path: Path
    sha256: str
    records: list[tuple[int, Any]]  # line number, record or what is wrong with it
    skip_bad: bool = False
    bad: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # what was not taken, and how often
    label: str = ""  # the file among those of its folder, where there are several

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        return utf8(self.path.stem)

    def line_id(self, line: int) -> str:
        """Name of the session of a record that tells none."""
        return f"{self.label}-line-{line:07d}" if self.label else f"line-{line:07d}"

    def each(self, build: Callable[[Any], Any]) -> Iterator[tuple[int, Any]]:
        """Line number and ``build(record)`` of every record that is not bad.

        Raises
        ------
        KvtopError
            Of a bad record, unless such are to be skipped.
        """
        for line, row in self.records:
            try:
                if isinstance(row, Bad):
                    raise row
                built = build(row)
            except Bad as error:
                self.fault(line, error)
            else:
                yield line, built

    def fault(self, line: int, error: Exception | str) -> None:
        """Count a bad record, or raise when bad records are not skipped."""
        if not self.skip_bad:
            raise KvtopError(f"{self.path}, line {line}: {error}.") from None
        self.bad += 1


def read_rows(path: Path, known: Callable[[Any], bool], skip_bad: bool = False) -> Rows:
    """The records of ``path``; ``known`` tells whether a record is of some known format.

    Raises
    ------
    KvtopError
        The file is missing or empty, or a document has a fault in its text or JSON.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise KvtopError(f"There is no trace file {path}; check the path.") from None
    except OSError as error:
        said = error.strerror or error
        raise KvtopError(f"The trace file {path} cannot be read: {said}.") from None
    whole = data.decode("utf-8-sig", "surrogateescape")  # a byte of no text stands out: `_no_text`
    if not whole.strip():
        raise KvtopError(f"The trace file {path} is empty; record it again.")
    lines = [(i, line) for i, line in enumerate(whole.split("\n"), 1) if line.strip()]
    if whole.lstrip()[0] not in "{[" and not _json_lines(lines[1:], known):
        records = _csv(lines)
        if len(lines) == 1 and known(records[0][1]):
            where = f"{path}, line {lines[0][0]}"
            raise KvtopError(f"{where}: the file names columns and has no rows; record it again.")
    elif not _LIST.match(lines[0][1]) and (_json_lines(lines, known) or _is_object(lines[0][1])):
        records = [(i, _parsed(line)) for i, line in lines]
    else:
        records = _document(path, whole)
    return Rows(path, hashlib.sha256(data).hexdigest(), records, skip_bad)


def _json_lines(lines: list[tuple[int, str]], known: Callable[[Any], bool]) -> bool:
    rows = (_parsed(line) for _, line in lines[:PROBED])
    return any(isinstance(row, dict) and known(row) for row in rows)


def _is_object(line: str) -> bool:
    """Whether a line is a whole JSON object, so that the file is lines, though of no format."""
    return isinstance(_parsed(line), dict)


def _no_text(line: str) -> Bad | None:
    """What is wrong with a line that holds bytes of no UTF-8 text."""
    if line.isascii() or not (found := _BYTE.search(line)):
        return None
    byte = ord(found[0]) - 0xDC00
    said = f"this is not UTF-8 text (byte 0x{byte:02x} at column {found.start() + 1})"
    return Bad(f"{said}; unpack or convert the file when all of it is so")


def _parsed(line: str) -> Any:
    """A line's JSON, or what is wrong with it."""
    if fault := _no_text(line):
        return fault
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return Bad(f"this is not JSON ({error.msg} at column {error.colno})")
    except (ValueError, RecursionError):
        return Bad("this JSON holds a number too long or is nested too deep")


def _csv(lines: list[tuple[int, str]]) -> list[tuple[int, Any]]:
    """Lines of a table as objects by the names of its first line."""
    names = _cells(lines[0][1])
    if isinstance(names, Bad):
        return [(lines[0][0], names)]
    names, rows = [name.strip() for name in names], []
    for i, line in lines[1:]:
        cells = _cells(line)
        if not isinstance(cells, Bad):
            fits = len(cells) == len(names)
            fault = Bad(f"{len(cells)} cells under {len(names)} names")
            cells = dict(zip(names, cells, strict=True)) if fits else fault
        rows.append((i, cells))
    return rows or [(lines[0][0], dict.fromkeys(names, ""))]


def _cells(line: str) -> list[str] | Bad:
    """A line's cells, or what is wrong with it."""
    if fault := _no_text(line):
        return fault
    try:
        return next(csv.reader([line.rstrip("\r")], strict=True))
    except csv.Error as error:
        return Bad(f"this is not CSV ({error})")


def _document(path: Path, whole: str) -> list[tuple[int, Any]]:
    """The one object, or the elements of the one array, each with the line it begins in."""
    for i, text in enumerate(whole.split("\n"), 1):
        if fault := _no_text(text):
            raise KvtopError(f"{path}, line {i}: {fault}.")
    decoder, rows, at, line = json.JSONDecoder(), [], 0, 1

    def on(to: int) -> int:
        """Go on to the next character from ``to`` that is not blank."""
        nonlocal line
        while to < len(whole) and whole[to].isspace():
            to += 1
        line += whole.count("\n", at, to)
        return to

    at = on(0)
    inside = whole[at] == "["
    at = on(at + 1) if inside else at
    while not inside or whole[at : at + 1] != "]":
        try:
            row, end = decoder.raw_decode(whole, at)
            rows.append((line, row))
            at = on(end)
            if not inside and at < len(whole):
                raise json.JSONDecodeError("Extra data", whole, at)
            if inside and whole[at : at + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", whole, at)
        except json.JSONDecodeError as error:
            fault = f"this is not JSON ({error.msg} at column {error.colno})"
            raise KvtopError(f"{path}, line {error.lineno}: {fault}.") from None
        except (ValueError, RecursionError):
            fault = "this JSON holds a number too long or is nested too deep"
            raise KvtopError(f"{path}, line {line}: {fault}.") from None
        if not inside:
            return rows
        at = on(at + 1) if whole[at] == "," else at
    if (at := on(at + 1)) < len(whole):
        raise KvtopError(f"{path}, line {line}: this is not JSON (text behind the list's end).")
    return rows

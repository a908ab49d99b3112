"""Reads a note as its readers do, and recomputes its numbers from the records, without the library.

`traced` finds every value with its source, `untraced_digits` every digit that has none, and
`recompute` works a source out from the files of a run.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

HIDDEN = {"script", "style", "svg", "details", "head", "noscript", "code", "pre"}
VOID = {"br", "hr", "img", "meta", "link", "input", "wbr"}


@dataclass
class Traced:
    """A value of the page: its visible text, its source, and the number it stands for."""

    text: str
    source: str
    value: float | None


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, Traced | None]] = []
        self.traced: list[Traced] = []
        self.untraced: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in VOID:
            return
        found, a = None, dict(attrs)
        if "data-source" in a:
            number = a.get("data-value")
            found = Traced("", a["data-source"], float(number) if number else None)
            self.traced.append(found)
        self.open.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:  # <meta/> ends nothing that is open
            return
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(tag in HIDDEN for tag, _ in self.open):
            return
        inner = next((t for _, t in reversed(self.open) if t), None)
        if inner:
            inner.text += data
        elif re.search(r"\d", data):
            self.untraced.append(data.strip())


def traced(html: str) -> list[Traced]:
    """Every value that names a source, in the order of the page."""
    reader = _Reader()
    reader.feed(html)
    return reader.traced


def untraced_digits(html: str) -> list[str]:
    """Visible text outside of charts, tables and code with a digit that has no source."""
    reader = _Reader()
    reader.feed(html)
    return reader.untraced


def quoted_text(value: Traced) -> bool:
    """Whether a value is a sentence of the records, printed as it is."""
    return value.source.endswith((":reason", ".text", ".reason"))


def held(
    run: Path,
    html: str,
    *,
    skip: str | None = None,
    is_text: Callable[[Traced], bool] = quoted_text,
) -> Counter[str]:
    """Hold every value of a page against the records; how many numbers were, by their file.

    Numbers must have a source, equal what is recomputed from it, and be printed as it rounds.
    Values whose source begins with ``skip`` are left out.
    """
    assert untraced_digits(html) == []
    checked: Counter[str] = Counter()
    for value in traced(html):
        if skip and value.source.startswith(skip):
            continue
        expected = recompute(run, value.source)
        if isinstance(expected, int | float) and value.value is not None:
            assert value.value == pytest.approx(expected, rel=1e-9), value
            step = half_step(value.text) * 1.0001
            assert shown(value.text) == pytest.approx(expected, abs=step), value
            checked[value.source.partition("#")[0]] += 1
        elif isinstance(expected, str) and is_text(value):
            assert value.text == expected, value
    return checked


def field(record: Any, path: str) -> Any:
    """Value at a dotted path."""
    for key in path.split("."):
        record = record[int(key)] if isinstance(record, list) else record[key]
    return record


def recompute(run: Path, source: str) -> float | str | None:
    """The value of a source; None for what is no number or text of a record."""
    if quotient := re.fullmatch(r"geomean\((.+)\)/geomean\((.+)\)", source):
        return _geomean(run, quotient[1]) / _geomean(run, quotient[2])
    if source.startswith("plan.json:"):
        return _planned(run, source.partition(":")[2])
    if source == "*/b*/deployment.json:count(distinct machine, booted_utc)":
        told = [json.loads(file.read_text()) for file in run.glob("*/b*/deployment.json")]
        return len({str([x["machine"], x["booted_utc"]]) for x in told if "machine" in x})
    file, _, rest = source.partition("#")
    if file.endswith((".json",)):
        return field(json.loads((run / file).read_text()), rest)
    if file in ("iterations.parquet", "factors.jsonl"):
        return _factor(run, rest)
    if file.endswith((".yaml", ".csv")) and rest:
        return _printed(run / file, rest)
    name = source.partition(":")[0].partition("#")[0]
    if not name.endswith("results.jsonl"):
        return None
    lines = [json.loads(x) for x in (run / name).read_text().splitlines()]
    if not rest:
        return _whole(lines, source.partition(":")[2])
    where, _, what = rest.partition(":")
    call = re.fullmatch(r"(mean|sum|ratio)\((.+)\)", what)
    if not call:
        return field(lines[int(where[1:]) - 1], what) if "," not in where else None
    name, path = call.groups()

    def at(number: str) -> float:
        return float(field(lines[int(number[1:]) - 1], path))

    parts = where.split(",")
    if name == "sum":
        return math.fsum(at(p) for p in parts)
    if name == "mean":
        return math.fsum(at(p) for p in parts) / len(parts)
    logs = [math.log(at(a) / at(b)) for a, b in (p.split("/") for p in parts)]
    return math.exp(math.fsum(logs) / len(logs))


def _factor(run: Path, source: str) -> float:
    """A factor of the ratio between points, from recorded iterations and results.jsonl."""
    where, _, what = source.partition(":")
    name = re.fullmatch(r"ratio\((.+)\)", what)[1]
    pairs = [pair.split("|") for pair in where.split(",")]
    logs = [math.log(_quotient(run, name, a, b)) for a, b in pairs]
    return math.exp(math.fsum(logs) / len(logs))


def _quotient(run: Path, name: str, a: str, b: str) -> float:
    if name != "residual":
        return _of_point(run, a)[name] / _of_point(run, b)[name]
    product = math.prod(_quotient(run, k, a, b) for k in ("acceptance", "batch", "busy_share"))
    product /= _quotient(run, "iteration_time", a, b)
    speeds = _speeds(run)
    return speeds[a] / speeds[b] / product


def _speeds(run: Path) -> dict[str, float]:
    """Output throughput by the folder of a point, out of results.jsonl."""
    found = {}
    for line in map(json.loads, (run / "results.jsonl").read_text().splitlines()):
        retry = f".a{line['attempt']}" if line["attempt"] > 1 else ""
        place = f"{line['arm']}/b{line['block']}/{line['workload']}/{line['load']}{retry}"
        found[place] = line.get("output_tok_s")
    return found


def _of_point(run: Path, point: str) -> dict[str, float]:
    """Sums over iterations that end in the window and yield tokens to running requests.

    Of a copy without iterations: the factors that it holds instead.
    """
    if (run / "factors.jsonl").is_file():
        kept = map(json.loads, (run / "factors.jsonl").read_text().splitlines())
        return next(row for row in kept if row["point"] == point)
    window = json.loads((run / point / "recording.json").read_text())["window"]
    wanted = ["t_s", "dur_s", "mode", "bs", "committed_tokens"]
    rows = pq.read_table(run / point / "iterations.parquet", columns=wanted).to_pylist()
    rows = [
        r for r in rows
        if r["mode"] in ("decode", "verify")
        and window["w0_s"] <= r["t_s"] + r["dur_s"] < window["w1_s"]
    ]  # fmt: skip
    time, bs, tokens = (math.fsum(r[k] for r in rows) for k in ("dur_s", "bs", "committed_tokens"))
    return {
        "acceptance": tokens / bs, "batch": bs / len(rows), "iteration_time": time / len(rows),
        "busy_share": time / (window["w1_s"] - window["w0_s"]),
    }  # fmt: skip


def _geomean(run: Path, source: str) -> float:
    """Geometric mean of one field over lines."""
    name, _, rest = source.partition("#")
    where, _, what = rest.partition(":")
    lines = [json.loads(x) for x in (run / name).read_text().splitlines()]
    values = [float(field(lines[int(n[1:]) - 1], what)) for n in where.split(",")]
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _printed(file: Path, where: str) -> float | str:
    """A value of a published source: a field of its YAML, or what cells of its CSV make."""
    if file.suffix == ".yaml":
        inner = re.fullmatch(r"change\((.+)\)", where)
        record: Any = yaml.safe_load(file.read_text())
        for key in (inner[1] if inner else where).split("."):
            record = record[int(key)] if isinstance(record, list) else record[key]
        return 1 + record / 100 if inner else record
    line, _, what = where.partition(":")
    with file.open(newline="") as f:
        rows = list(csv.reader(f))
    cells = dict(zip(rows[0], rows[int(line[1:]) - 1], strict=True))

    def at(term: str) -> float:
        inner = re.fullmatch(r"change\((.+)\)", term)
        if inner:
            return 1 + float(cells[inner[1]]) / 100
        return 1.0 if term == "1" else float(cells[term])

    over, slash, under = what.partition("/")
    value = math.prod(at(term) for term in over.split("*"))
    return value / at(under) if slash else value


def _planned(run: Path, what: str) -> int:
    """Points of the plan, or those of them without a line."""
    steps = json.loads((run / "plan.json").read_text())["lifetimes"]
    wanted = [(s["arm"], s["block"], s["workload"], load) for s in steps for load in s["loads"]]
    if what == "count(*)":
        return len(wanted)
    lines = map(json.loads, (run / "results.jsonl").read_text().splitlines())
    done = {(x["arm"], x["block"], x["workload"], x["load"]) for x in lines}
    return sum(point not in done for point in wanted)


def _whole(lines: list[dict], what: str) -> float | None:
    last = {(x["arm"], x["block"], x["workload"], x["load"]): x for x in lines}.values()
    if what == "count(*)":
        return len(last)
    if m := re.fullmatch(r"count\(status=(.+)\)", what):
        return sum(x["status"] in m[1].split("|") for x in last)
    if m := re.fullmatch(r"sum\((.+)\)", what):
        return sum(field(x, m[1]) for x in last if x["status"] == "ok")
    return None


SCALE = {"%": 0.01, "percent": 0.01, "ms": 1e-3, "GB": 1e9}


def scale(text: str) -> float:
    """What a unit at the end of a text multiplies its number with."""
    return next((s for unit, s in SCALE.items() if text.endswith(unit)), 1.0)


def shown(text: str) -> float | None:
    """The number that a text shows: ``+12 %`` as a ratio, ``29 ms`` in seconds."""
    m = re.search(r"[+−-]?[\d,]+(?:\.\d+)?", text)
    if not m:
        return None
    number = float(m[0].replace(",", "").replace("−", "-")) * scale(text)
    return 1 + number if text.endswith("%") else number


def half_step(text: str) -> float:
    """Half of the last digit that a text shows, in the unit of `shown`."""
    m = re.search(r"\d[\d,]*(?:\.(\d+))?", text)
    return 10.0 ** -len(m[1] or "") / 2 * scale(text)

"""A reading as rows of text: the same words on the screen, in a notebook, and in `--once`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HISTORY = 120
"""Readings that a spark line goes back."""

BARS = " ▁▂▃▄▅▆▇█"
SPLIT = 4
"""Parts of an iteration that are named; the rest is summed up."""


def _at(*keys: str) -> Callable[[dict[str, Any]], float | None]:
    def value(reading: dict[str, Any]) -> float | None:
        found: Any = reading
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return value


@dataclass(frozen=True)
class Row:
    """One line of the view: its name, its value in a reading, and how it is written."""

    key: str
    label: str
    value: Callable[[dict[str, Any]], float | None]
    text: Callable[[float, dict[str, Any]], str]


def _count(x: float, reading: dict[str, Any]) -> str:
    return f"{x:,.0f}"


def _seconds(x: float, reading: dict[str, Any] | None = None) -> str:
    return f"{x * 1000:,.1f} ms" if x < 1 else f"{x:,.2f} s"


def _kv(x: float, reading: dict[str, Any]) -> str:
    total = reading["kv"]["total_tokens"]
    return f"{x:,.0f} of {total:,.0f} tokens ({x / total:.0%})" if total else f"{x:,.0f} tokens"


def _iteration(x: float, reading: dict[str, Any]) -> str:
    return f"{_seconds(x)}  {split(reading['iteration'])}"


def _bytes(x: float, reading: dict[str, Any]) -> str:
    return f"{x / 1e9:,.2f} GB"


ROWS = (
    Row("running", "running", _at("running"), _count),
    Row("queued", "queued", _at("queued"), _count),
    Row("output", "output tok/s", _at("output_tok_s"), lambda x, r: f"{x:,.1f}"),
    Row("ttft", "TTFT p50", _at("ttft_s"), _seconds),
    Row("accept_len", "acceptance length", _at("accept_len"), lambda x, r: f"{x:.2f}"),
    Row("width", "verify width", _at("width_tokens"), lambda x, r: f"{x:.3g}"),
    Row("iteration", "iteration", _at("iteration", "iteration_s"), _iteration),
    Row("kv", "KV target", _at("kv", "used_tokens"), _kv),
    Row("draft_kv", "KV draft", _at("kv", "draft_used_tokens"), _kv),
    Row("server", "server memory", _at("machine", "server_rss_bytes"), _bytes),
    Row("load", "load average", _at("machine", "load_1min"), lambda x, r: f"{x:.2f}"),
    Row("gpu", "GPU memory", _at("machine", "gpu_memory_bytes"), _bytes),
    Row("power", "GPU power", _at("machine", "gpu_power_w"), lambda x, r: f"{x:,.0f} W"),
)


def split(iteration: dict[str, Any]) -> str:
    """Largest parts of an iteration as shares of its time."""
    total = iteration["iteration_s"] or 1.0
    parts = sorted(iteration["parts_s"].items(), key=lambda p: -p[1])
    named = [f"{name} {seconds / total:.0%}" for name, seconds in parts[:SPLIT]]
    rest = iteration["other_s"] + sum(seconds for _, seconds in parts[SPLIT:])
    return " · ".join([*named, f"rest {rest / total:.0%}"])


def text(row: Row, reading: dict[str, Any]) -> str:
    """A row's value in words; a dash where it is not known, and why where that helps."""
    value = row.value(reading)
    if value is not None:
        return row.text(value, reading)
    if row.key == "iteration" and reading.get("state") == "ok":
        return "recorder off" if reading["recorder"] == "off" else "idle"
    return "–"


def title(reading: dict[str, Any]) -> str:
    """Which server this is."""
    known = [reading.get("engine"), reading.get("version"), reading.get("model")]
    words = [str(k) for k in known if k]
    if reading.get("restarts"):
        words.append(f"restarts seen: {reading['restarts']}")
    return "  ".join([reading["url"], *words])


def bars(values: list[float | None], width: int = 20) -> str:
    """A spark line from 0 to the largest value; a gap where there was none."""
    shown = values[-width:]
    top = max((v for v in shown if v is not None), default=0.0) or 1.0
    return "".join(
        " " if v is None else BARS[max(1, round(max(v, 0.0) / top * (len(BARS) - 1)))]
        for v in shown
    )


@dataclass
class History:
    """The last readings, by row."""

    values: dict[str, deque[float | None]] = field(
        default_factory=lambda: {row.key: deque(maxlen=HISTORY) for row in ROWS}
    )

    def add(self, reading: dict[str, Any]) -> None:
        """Take in a reading; one without a server leaves a gap."""
        for row in ROWS:
            self.values[row.key].append(row.value(reading))


def table(reading: dict[str, Any], history: History | None = None) -> str:
    """A reading as plain text; rows that no such server has are left out."""
    lines = [title(reading)]
    if reading["state"] != "ok":
        return "\n".join([*lines, reading["message"]])
    for row in ROWS:
        if row.value(reading) is not None or row.key == "iteration":
            spark = bars(list(history.values[row.key])) if history else ""
            lines.append(f"{row.label:<18} {text(row, reading)}  {spark}".rstrip())
    return "\n".join(lines)

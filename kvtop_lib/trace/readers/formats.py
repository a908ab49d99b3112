"""The formats that are read, and the reading of a file or a folder of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session, Trace
from kvtop_lib.trace.readers import agents, arrivals, chat, mooncake
from kvtop_lib.trace.readers.fields import MAX_SECONDS, Bad
from kvtop_lib.trace.readers.rows import Rows, read_rows, utf8
from kvtop_lib.trace.sessions_jsonl import is_sessions, sessions_of


@dataclass(frozen=True)
class Format:
    """A format of trace files; ``matches`` looks at one record."""

    name: str
    title: str
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[Rows], list[Session]]


def _has(key: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: chat.conversation_key(row) == key


OURS = Format("kvtop-sessions", "KVTop session JSONL", is_sessions, lambda rows: [])
FORMATS = (
    OURS,
    Format("qwen-bailian", "Qwen-Bailian JSONL", mooncake.is_qwen, mooncake.read_qwen),
    Format("tracelab", "TraceLab round JSONL", agents.is_tracelab, agents.read_tracelab),
    Format("mooncake", "Mooncake JSONL", mooncake.is_mooncake, mooncake.read_mooncake),
    Format("weka", "WEKA / AgentX session", agents.is_weka, agents.read_weka),
    Format("azure", "Azure LLM inference CSV", arrivals.is_azure, arrivals.read_azure),
    Format("burstgpt", "BurstGPT CSV", arrivals.is_burstgpt, arrivals.read_burstgpt),
    Format("openai-messages", "OpenAI messages", _has("messages"), chat.read_chat),
    Format("tau-bench", "tau-bench episodes", _has("traj"), chat.read_chat),
    Format("swe-agent", "SWE-agent trajectory", _has("history"), chat.read_chat),
    Format("sharegpt", "ShareGPT JSON", _has("conversations"), chat.read_chat),
)
TEXT_FORMATS = ("openai-messages", "tau-bench", "swe-agent", "sharegpt")
"""Formats whose tokens are estimated from characters until a tokenizer counts them."""

ESTIMATED = "estimated from characters"


def format_of(row: Any) -> Format | None:
    """The format of a record."""
    return next((f for f in FORMATS if isinstance(row, dict) and f.matches(row)), None)


@dataclass
class Found:
    """What one file holds."""

    format: Format
    trace: Trace
    rows: Rows


def read_trace(path: Path, skip_bad: bool = False) -> Trace:
    """Read a trace file of any format, or a folder whose files are of one format.

    ``recorded_with`` tells source, what was passed over, and where token counts are estimates.

    Raises
    ------
    KvtopError
        As of `read_file`; files of a folder have different formats or share session ids; times
        lie too far apart.
    """
    if not path.is_dir():
        found = read_file(path, skip_bad)
        return _told(found.trace.name, [found])
    files = [p for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith(".")]
    if not files:
        raise KvtopError(f"The folder {path} holds no trace files; check the path.")
    labels = [""] if len(files) == 1 else _labels(files)
    every = [read_file(f, skip_bad, label) for f, label in zip(files, labels, strict=True)]
    names = sorted({found.format.name for found in every})
    if len(names) > 1:
        raise KvtopError(f"The folder {path} mixes the formats {', '.join(names)}; name one file.")
    return _told(utf8(path.resolve().name), every)


def _labels(files: list[Path]) -> list[str]:
    """The files' names, without their suffixes where that still tells them apart."""
    stems = [file.stem for file in files]
    names = stems if len(set(stems)) == len(stems) else [file.name for file in files]
    return [utf8(name) for name in names]


def read_file(path: Path, skip_bad: bool = False, label: str = "") -> Found:
    """Read one file; ``label`` begins the names of sessions that tell none.

    Raises
    ------
    KvtopError
        The file cannot be read, is of no known format, or a line is bad (unless ``skip_bad``).
    """
    rows = read_rows(path, lambda row: format_of(row) is not None, skip_bad)
    rows.label = label
    format = next((f for _, row in rows.records[:20] if (f := format_of(row))), None)
    if format is None:
        line, row = rows.records[0] if rows.records else (1, None)
        known = ", ".join(f.name for f in FORMATS)
        fault = row if isinstance(row, Bad) else f"this is no known trace format ({known})"
        raise KvtopError(f"{path}, line {line if fault is row else 1}: {fault}.")
    if format is OURS:
        return Found(format, sessions_of(rows), rows)
    return Found(format, Trace(rows.stem, {}, tuple(format.read(rows))), rows)


def _told(name: str, every: list[Found]) -> Trace:
    """One trace of what was found, its header telling source and losses, its clock from 0."""
    sessions = [s for found in every for s in found.trace.sessions]
    twice = [id for id, n in Counter(s.id for s in sessions).items() if n > 1]
    if twice:
        raise KvtopError(f"The session id {twice[0]!r} occurs in several places of {name}.")
    bad = sum(found.rows.bad for found in every)
    left_out = sum((found.rows.left_out for found in every), Counter())
    first = every[0]
    if first.format is OURS and len(every) == 1:
        said = {**first.trace.recorded_with, **({"bad_lines_skipped": bad} if bad else {})}
        return replace(first.trace, recorded_with=said)
    heads = [found.trace.recorded_with for found in every]  # of own files, else empty
    left_out = sum((Counter(head.get("left_out", {})) for head in heads), left_out)
    bad += sum(head.get("bad_lines_skipped", 0) for head in heads)
    source = {"format": first.format.name, "files": len(every)}
    if len(every) == 1:
        source |= {"file": utf8(first.rows.path.name), "sha256": first.rows.sha256}
    said = {"source": source, "left_out": dict(left_out), "bad_lines_skipped": bad}
    text = first.format.name in TEXT_FORMATS
    if text or any(t.messages for s in sessions for t in s.turns if first.format is not OURS):
        said["tokens"] = ESTIMATED
    elif told := [head["tokens"] for head in heads if "tokens" in head]:
        said["tokens"] = ESTIMATED if ESTIMATED in told else told[0]
    return Trace(name, said, _from_zero(name, sessions))


def _from_zero(name: str, sessions: list[Session]) -> tuple[Session, ...]:
    """Sessions with times of sending from the first one on, none later than can be stored."""
    times = [t.at_s for s in sessions for t in s.turns if t.at_s is not None]
    zero = min(times, default=0.0)
    span = round(max(times, default=0.0) - zero, 6)
    longest = max(span, max((t.think_s for s in sessions for t in s.turns), default=0.0))
    if longest >= MAX_SECONDS:
        raise KvtopError(
            f"Times of {name} lie {longest:,.0f} s apart, and a trace spans less than "
            f"{MAX_SECONDS:,.0f} s; mend those times, or take the records out."
        )
    if not zero:
        return tuple(sessions)
    return tuple(
        replace(
            s,
            turns=tuple(
                t if t.at_s is None else replace(t, at_s=round(t.at_s - zero, 6)) for t in s.turns
            ),
        )
        for s in sessions
    )

"""Read and write KVTop's own session JSONL: a header line, then one session per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import FORMAT, VERSION, Session, Trace, Turn

FINISH_REASONS = ("stop", "length")


class _Bad(ValueError):
    """What is wrong in a line; the reader adds file and line number."""


def read_sessions(path: str | Path) -> Trace:
    """Read a session JSONL file.

    Raises
    ------
    KvtopError
        The file is missing, not in this format, or a line is wrong; the sentence names file,
        line and fault.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise KvtopError(f"There is no trace file {path}; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KvtopError(f"The trace file {path} cannot be read as UTF-8 text: {error}.") from None
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise KvtopError(f"The trace file {path} is empty; record it again.")
    name, recorded_with = _at(path, numbered[0], _header)
    sessions: dict[str, Session] = {}
    for item in numbered[1:]:
        session = _at(path, item, _session)
        if session.id in sessions:
            raise KvtopError(f"{path}, line {item[0]}: the session id {session.id!r} occurs twice.")
        sessions[session.id] = session
    return Trace(name, recorded_with, tuple(sessions.values()))


def write_sessions(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` to ``path``, complete or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".writing")
    partial.write_text("".join(line + "\n" for line in trace.lines()), encoding="utf-8")
    os.replace(partial, path)


def _at(path: Path, item: tuple[int, str], build: Callable[[Any], Any]) -> Any:
    number, line = item
    try:
        return build(json.loads(line))
    except json.JSONDecodeError as error:
        fault = f"this is not JSON ({error.msg} at column {error.colno})"
    except _Bad as error:
        fault = str(error)
    raise KvtopError(f"{path}, line {number}: {fault}.")


def _header(row: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise _Bad(f'the first line must be a header with "format": "{FORMAT}"')
    if row.get("version") != VERSION:
        raise _Bad(f"version {row.get('version')!r} is not known, this reader knows {VERSION}")
    return _get(row, "name", str), _get(row, "recorded_with", dict)


def _session(row: Any) -> Session:
    if not isinstance(row, dict):
        raise _Bad("a session must be a JSON object")
    turns = _get(row, "turns", list)
    if not turns:
        raise _Bad("the session has no turns")
    built = []
    for k, turn in enumerate(turns):
        try:
            built.append(_turn(turn))
        except _Bad as error:
            raise _Bad(f"turn {k}: {error}") from None
    withdrawn = _count(row, "withdrawn", low=0) if "withdrawn" in row else 0
    return Session(_get(row, "id", str), _get(row, "task", str), tuple(built), withdrawn)


def _turn(row: Any) -> Turn:
    if not isinstance(row, dict):
        raise _Bad("a turn must be a JSON object")
    messages = _get(row, "messages", list)
    if not messages:
        raise _Bad("it has no messages")
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise _Bad('a message must have exactly the keys "role" and "content"')
        _get(message, "role", str), _get(message, "content", str)
    finish_reason = _get(row, "finish_reason", str)
    if finish_reason not in FINISH_REASONS:
        raise _Bad(f'"finish_reason" is {finish_reason!r}, not one of {", ".join(FINISH_REASONS)}')
    return Turn(
        messages=tuple(messages),
        output=_get(row, "output", str),
        output_tokens=_count(row, "output_tokens"),
        finish_reason=finish_reason,
        prompt_tokens=_count(row, "prompt_tokens"),
        think_s=_seconds(row, "think_s"),
        looped=_get(row, "looped", bool),
    )


def _get(row: dict[str, Any], key: str, kind: type) -> Any:
    if key not in row:
        raise _Bad(f'"{key}" is missing')
    if not isinstance(row[key], kind):
        raise _Bad(f'"{key}" must be of type {kind.__name__}, not {type(row[key]).__name__}')
    return row[key]


def _count(row: dict[str, Any], key: str, low: int = 1) -> int:
    value = _get(row, key, int)
    if isinstance(value, bool) or value < low:
        raise _Bad(f'"{key}" must be a whole number of at least {low}, not {value!r}')
    return value


def _seconds(row: dict[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise _Bad(f'"{key}" must be a number of seconds of at least 0, not {value!r}')
    return float(value)

"""Read and write KVTop's own session JSONL: a header line, then one session per line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import FORMAT, VERSION, Session, Trace, Turn
from kvtop_lib.trace.readers.fields import Bad, count, fit_blocks, get, ids, record, seconds
from kvtop_lib.trace.readers.rows import Rows, read_rows

FINISH_REASONS = ("stop", "length")
KNOWN_REASONS = (*FINISH_REASONS, "unknown")


def is_sessions(row: dict[str, Any]) -> bool:
    """Whether a record is the header or a session of this form."""
    return row.get("format") == FORMAT or row.keys() >= {"id", "task", "turns"}


def read_sessions(path: str | Path) -> Trace:
    """Read a session JSONL file, which may hold no session yet.

    Raises
    ------
    KvtopError
        The file is missing, not in this format, or a line is wrong; the sentence names file,
        line and fault.
    """
    return sessions_of(read_rows(Path(path), is_sessions))


def sessions_of(rows: Rows) -> Trace:
    """The trace of the records of a session JSONL file; errors as in `read_sessions`."""
    first, skips = rows.records[:1], rows.skip_bad
    head = Rows(rows.path, rows.sha256, first)  # without its header a file is never read
    version, name, recorded_with = next(header for _, header in head.each(_header))
    sessions: dict[str, Session] = {}
    rest = Rows(rows.path, rows.sha256, rows.records[1:], skips)
    for line, session in rest.each(lambda row: _session(row, version)):
        if session.id in sessions:
            rest.fault(line, f"the session id {session.id!r} occurs twice")
        else:
            sessions[session.id] = session
    rows.bad = rest.bad
    return Trace(name, recorded_with, tuple(sessions.values()))


def write_sessions(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` to ``path``, or to the file that it links to, complete or not at all.

    Raises
    ------
    KvtopError
        When ``path`` is there and no regular file, which would be replaced by one.
    """
    path = Path(path)
    if path.is_dir():
        raise KvtopError(f"{path} is a folder; name the file to write")
    target = Path(os.path.realpath(path))
    if (path.exists() and not path.is_file()) or target.is_symlink():  # a link is left of a circle
        raise KvtopError(f"{path} is not a regular file; name another file to write")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".writing")
    partial.write_text("".join(line + "\n" for line in trace.lines()), encoding="utf-8")
    os.replace(partial, target)


def _header(row: Any) -> tuple[int, str, dict[str, Any]]:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise Bad(f'the first line must be a header with "format": "{FORMAT}"')
    version = row.get("version")
    if isinstance(version, bool) or version not in range(1, VERSION + 1):
        raise Bad(f"version {version!r:.40} is not known, this reader knows 1 to {VERSION}")
    recorded_with = get(row, "recorded_with", dict)
    get({"recorded_with": json.dumps(recorded_with, ensure_ascii=False)}, "recorded_with", str)
    _check_said(recorded_with)
    return int(version), get(row, "name", str), recorded_with


def _check_said(said: dict[str, Any]) -> None:
    """Refuse what KVTop reads in a header and cannot have written."""
    if "source" in said:
        get(said, "source", dict)
    for what in get(said, "left_out", dict) if "left_out" in said else ():
        count(said["left_out"], what, 0)
    if "bad_lines_skipped" in said:
        count(said, "bad_lines_skipped", 0)
    scale = said.get("scaled_tokens", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 <= scale <= 1:
        raise Bad(f'"scaled_tokens" must be a number from 0 to 1, not {scale!r:.40}')


def _session(row: Any, version: int) -> Session:
    record(row, "a session")
    turns = get(row, "turns", list)
    if not turns:
        raise Bad("the session has no turns")
    built = []
    for k, turn in enumerate(turns):
        try:
            built.append(_turn(turn, version))
        except Bad as error:
            raise Bad(f"turn {k}: {error}") from None
    withdrawn = count(row, "withdrawn", low=0) if "withdrawn" in row else 0
    return Session(get(row, "id", str), get(row, "task", str), tuple(built), withdrawn)


def _turn(row: Any, version: int) -> Turn:
    record(row, "a turn")
    messages, blocks = get(row, "messages", list), None
    if version > 1 and row.get("blocks") is not None:
        blocks = _blocks(get(row, "blocks", dict), count(row, "prompt_tokens"))
    if not messages and blocks is None:
        raise Bad("it has no messages")
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise Bad('a message must have exactly the keys "role" and "content"')
        get(message, "role", str), get(message, "content", str)
    reasons = FINISH_REASONS if version == 1 else KNOWN_REASONS
    finish_reason = get(row, "finish_reason", str)
    if finish_reason not in reasons:
        raise Bad(f'"finish_reason" is {finish_reason!r}, not one of {", ".join(reasons)}')
    untold = version > 1 and row.get("output", "") is None
    timed = version > 1 and row.get("at_s") is not None
    return Turn(
        messages=tuple(messages),
        output=None if untold else get(row, "output", str),
        output_tokens=count(row, "output_tokens"),
        finish_reason=finish_reason,
        prompt_tokens=count(row, "prompt_tokens"),
        think_s=seconds(row, "think_s"),
        looped=get(row, "looped", bool),
        blocks=blocks,
        at_s=seconds(row, "at_s") if timed else None,
        whole=version > 1 and get({"whole": row.get("whole", False)}, "whole", bool),
    )


def _blocks(row: dict[str, Any], prompt_tokens: int) -> Blocks:
    size = count(row, "size")
    found = fit_blocks(ids(row, "ids"), size, prompt_tokens, "the prompt's tokens")
    return Blocks(found, size, get(row, "scope", str))

"""What a server's log says about its end, in one sentence, and of what it chose by itself."""

from __future__ import annotations

import re
from pathlib import Path

_ERROR = re.compile(r"^(?:\[[^\]]*\]\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit)\b.*)")
_HINT = re.compile(r"\b(error|killed|out of memory|unrecognized arguments|no such)\b", re.I)


_CAP = re.compile(rb"max_total_num_tokens=\d+,.* max_running_requests=(\d+)\b")


def running_cap(file: Path) -> int | None:
    """Requests that SGLang runs at a time where it was left to choose; its other pages say none."""
    try:
        found = _CAP.search(file.read_bytes())
    except OSError:
        return None
    return int(found[1]) if found else None


def tail(file: Path, lines: int = 20, max_bytes: int = 65_536) -> list[str]:
    """Last non-empty lines of a log, oldest first; none when the file is not there."""
    try:
        with file.open("rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - max_bytes))
            text = f.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def reason(file: Path) -> str:
    """The last line that names an exception, else one that sounds like it, else the last line."""
    lines = tail(file, 200)
    for line in reversed(lines):
        if m := _ERROR.match(line.strip()):
            return m.group(1)[:400]
    for line in reversed(lines):
        if _HINT.search(line):
            return line.strip()[:400]
    return lines[-1].strip()[:400] if lines else "the log is empty"

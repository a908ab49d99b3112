"""Server-sent events out of stamped buffers, wherever the network cut them.

Buffers are kept as they came, each with the time at which it was read; lines are found only
after the request has ended. An event carries the time of the buffer that completed its line,
so a cut inside a line or inside a UTF-8 character changes no text and no order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r)")


@dataclass(frozen=True)
class Event:
    """One ``data:`` line (the OpenAI streams never spread an event over several lines)."""

    recv_s: float
    data: bytes


def events(stamps: Sequence[float], buffers: Sequence[bytes]) -> Iterator[Event]:
    """Events in order of arrival.

    Parameters
    ----------
    stamps
        Times at which the buffers were read, in seconds, not decreasing.
    buffers
        Bytes as read; the cuts between them mean nothing.

    Notes
    -----
    A last line without its line end is not an event: the stream was cut inside it.
    Comments (``: keep-alive``) and other fields (``event:``, ``id:``) are skipped.
    """
    ends = list(accumulate(len(b) for b in buffers))
    for match in _LINE.finditer(b"".join(buffers)):
        line = match.group(1)
        if line.startswith(b"data:"):
            # the line is complete with the first byte of its line end
            arrived = stamps[bisect_right(ends, match.end(1))]
            yield Event(arrived, line[5:].removeprefix(b" "))


def rest(buffers: Sequence[bytes]) -> bytes:
    """Bytes after the last complete line: what a cut stream left behind."""
    joined = b"".join(buffers)
    return joined[max(joined.rfind(b"\n"), joined.rfind(b"\r")) + 1 :]

"""What came back from one request: bytes with their times, then one status."""

from __future__ import annotations

import contextlib
from array import array
from dataclasses import dataclass, field

from kvtop_lib.replay.http1 import BadAnswer, Framing
from kvtop_lib.replay.reader import Reader, Reply
from kvtop_lib.terms import RequestStatus

__all__ = ["BAD_CHUNK", "Raw", "Reply", "parse"]

BAD_CHUNK = "bad_chunk"
"""Failure of an answer whose chunked coding is broken: what came before it can be read."""


@dataclass(eq=False, slots=True)
class Raw:
    """Bytes of one response with the times at which they were read; filled while it runs.

    ``buffers[:plain]`` are out of their HTTP framing, the others are as they came. `digest`
    turns buffers into arrivals and drops them, at any time and in parts.
    """

    sent_s: float | None = None
    stamps: array = field(default_factory=lambda: array("d"))
    buffers: list[bytes] = field(default_factory=list)
    end_s: float | None = None
    # what the transport saw, if not a clean end: status, text and, finer, which failure
    failure: tuple[RequestStatus, str] | tuple[RequestStatus, str, str] | None = None
    first_byte_s: float | None = None
    http_status: int | None = None
    reused: bool = False  # sent on a connection that had served a request before
    resent: int = 0  # times a reused connection was found closed before any byte
    framing: Framing | None = None
    plain: int = 0
    reader: Reader | None = None
    heard_s: float | None = None  # last byte of what is no longer in `stamps`

    @property
    def last_s(self) -> float | None:
        """Time of the last byte, or of sending."""
        return self.stamps[-1] if self.stamps else (self.heard_s or self.sent_s)

    @property
    def has_body(self) -> bool:
        """Something of a body has arrived."""
        return self.reader is not None or any(self.buffers)

    def forget(self) -> None:
        """Drop what was needed to read the answer; times and facts stay."""
        self.buffers.clear()
        self.reader = self.framing = None

    def unframe(self) -> None:
        """Take all buffers out of their HTTP framing.

        Raises
        ------
        BadAnswer
            When the framing is broken; what was read before stays.
        """
        if self.framing:
            for i in range(self.plain, len(self.buffers)):
                try:
                    self.buffers[i] = self.framing.feed(self.buffers[i])
                except BadAnswer:
                    del self.buffers[i:], self.stamps[i:]
                    raise
                self.plain = i + 1

    def digest(self, limit: int | None = None) -> int:
        """Read up to ``limit`` buffers into arrivals and drop them; the number of those left."""
        if self.http_status is not None and self.http_status >= 300:
            return 0
        self.unframe()
        self.reader = self.reader or Reader()
        n = min(limit or len(self.buffers), len(self.buffers))
        if n:
            self.reader.feed(self.stamps[:n], self.buffers[:n])
            self.heard_s = self.stamps[-1]
            self.first_byte_s = self.stamps[0] if self.first_byte_s is None else self.first_byte_s
            del self.buffers[:n], self.stamps[:n]
            self.plain = max(0, self.plain - n)
        return len(self.buffers)


def parse(raw: Raw) -> Reply:
    """Read what is left of a response after its end and give it exactly one status.

    An error event counts as ``stream_error`` even after good tokens; a complete stream (finish
    reason and end mark) is ``ok`` whatever the transport did afterwards; broken framing is
    ``stream_error`` however the connection ended behind it; then comes what the transport saw; a
    stream that just stopped is ``truncated``.
    """
    failure = raw.failure
    if failure and failure[0] == "http_error":
        return _ended(Reply(), *failure)
    with contextlib.suppress(BadAnswer):
        raw.unframe()
    if raw.framing and raw.framing.broken:
        failure = ("stream_error", raw.framing.broken, BAD_CHUNK)
        raw.framing = None  # what came before can be read
    raw.digest()
    reader = raw.reader or Reader()
    raw.reader = raw.framing = None
    reply = reader.finish()
    if reply.status != "ok":
        return reply
    if reply.finish_reason in ("abort", "error"):
        return _ended(reply, "stream_error", "the server aborted the request", "aborted_by_server")
    if reply.done and reply.finish_reason:
        return reply
    if failure:
        return _ended(reply, *failure)
    if not reader.events and reader.head.lstrip()[:1] in (b"{", b"[", b"<"):
        said = reader.head[:200].decode("utf-8", "replace")
        return _ended(reply, "stream_error", f"not an event stream: {said!r}", "not_a_stream")
    missing = "final chunk" if reply.finish_reason is None else "end mark [DONE]"
    left = reader.rest[:200].decode("utf-8", "replace")
    tail = f"; last bytes: {left!r}" if left else ""
    kind = "no_final_chunk" if reply.finish_reason is None else "no_end_mark"
    return _ended(reply, "truncated", f"the stream ended without its {missing}{tail}", kind)


def _ended(reply: Reply, status: RequestStatus, error: str, failure: str | None = None) -> Reply:
    reply.status, reply.error, reply.failure = status, error, failure or status
    return reply

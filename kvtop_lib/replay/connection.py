"""One connection: a request out, bytes in, each read stamped before anything else is done."""

from __future__ import annotations

import asyncio
import time

from kvtop_lib.replay.http1 import BadAnswer, Framing, take_head
from kvtop_lib.replay.reply import BAD_CHUNK, Raw

clock = time.monotonic
"""The run's clock: CLOCK_MONOTONIC, shared by all processes of a host."""

# Chunked coding ends with an empty line. A read that ends the answer therefore holds that, or
# begins with the rest of it; all other reads need no look.
_END, _CR = b"\r\n\r\n", 13


ERROR_LIMIT = 2**20
"""Most bytes of an error answer; a stream is read while it runs, an error is kept as it is."""


class Connection(asyncio.Protocol):
    """Serves one exchange after another.

    ``usable`` says that it may serve another one; ``silent_loss`` that the server had closed it
    before any byte of the answer, which is what happens to a connection that idled too long.
    """

    __slots__ = (
        "_done", "_error_bytes", "_head", "_keep", "_look", "_loop", "_raw", "_stamp",
        "_timeout_s", "_timer", "_transport", "silent_loss", "usable",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._transport, self._timer = loop, None, None
        self.usable, self.silent_loss = False, False
        self._rest()

    def _rest(self) -> None:
        self._raw = self._head = self._done = None
        self._stamp = self._keep = _ignore
        self._look, self._error_bytes = True, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.usable = transport, True

    def exchange(self, message: bytes, raw: Raw, timeout_s: float) -> asyncio.Future:
        """Send a request and read its answer into ``raw``.

        The future is done when the answer has ended in whatever way; a bad end is noted in
        ``raw.failure``. No byte for ``timeout_s`` seconds is a bad end.
        """
        self._raw, self._done = raw, self._loop.create_future()
        done = self._done
        self._stamp, self._keep = raw.stamps.append, raw.buffers.append
        self._timeout_s = timeout_s
        self._timer = self._loop.call_later(timeout_s, self._silence, clock())
        if self.usable:
            self.usable = False
            self._transport.write(message)
        else:
            self.connection_lost(None)
        return done

    def data_received(self, data: bytes) -> None:
        """Stamp and keep; nothing else happens to a read in the middle of a stream."""
        self._stamp(clock())
        self._keep(data)
        if self._look or _END in data or data[0] <= _CR:
            self._examine()

    def _examine(self) -> None:
        raw = self._raw
        if raw is None:
            return self.abort()  # bytes that nobody asked for
        try:
            if self._head is None and not self._take_head(raw):
                return None
            raw.unframe()
        except BadAnswer as e:
            broken = raw.framing is not None and raw.framing.broken
            return self._fail("stream_error", str(e), BAD_CHUNK if broken else "bad_answer")
        if raw.framing.ended:
            self._end()
        elif self._head.status >= 300:
            self._error_bytes += len(raw.buffers[-1]) if raw.buffers else 0
            if self._error_bytes > ERROR_LIMIT:
                status = self._head.status
                said = f"HTTP {status}: its text has not ended after {ERROR_LIMIT} bytes"
                self._fail("http_error", said, f"http_{status // 100}xx")
        return None

    def _take_head(self, raw: Raw) -> bool:
        if raw.first_byte_s is None:
            raw.first_byte_s = raw.stamps[0]
        taken = take_head(b"".join(raw.buffers))
        if taken is None:
            return False
        self._head, body = taken
        raw.http_status, raw.framing = self._head.status, self._head.framing()
        raw.heard_s = raw.stamps[-1]
        keep = slice(0, -1 if body else None)  # the read that brought the body's first bytes
        del raw.stamps[keep], raw.buffers[keep]
        if body:
            raw.buffers[0] = body
        self._look = raw.framing.length is not None or self._head.status >= 300
        return True

    def _end(self) -> None:
        raw, head = self._raw, self._head
        raw.end_s = raw.last_s
        if head.status >= 300:
            text = " ".join(b"".join(raw.buffers)[:300].decode("utf-8", "replace").split())
            kind = f"http_{head.status // 100}xx"
            raw.failure = ("http_error", f"HTTP {head.status}: {text}", kind)
        self.usable = head.keep_alive and not raw.framing.extra and raw.framing.length != -1
        self._finish()

    def _fail(self, status: str, error: str, kind: str) -> None:
        self._raw.failure, self._raw.end_s = (status, error, kind), clock()
        self._finish()
        self.abort()

    def _finish(self) -> None:
        self._timer.cancel()
        done = self._done
        self._rest()
        if not done.done():
            done.set_result(None)
        if not self.usable:
            self.abort()

    def _silence(self, since_s: float) -> None:
        # one timer per silence, not per read: it looks back when it fires
        raw = self._raw
        left = max(since_s, raw.last_s or 0.0) + self._timeout_s - clock()
        if left > 0.0005:  # a timer may fire a little early
            self._timer = self._loop.call_later(left, self._silence, since_s)
            return
        self._unframe_quietly(raw)
        what, kind = ("the stream stalled", "stall") if raw.has_body else ("no answer", "no_answer")
        self._fail("timeout", f"{what}: no byte for {self._timeout_s:g} s, the time limit", kind)

    def _unframe_quietly(self, raw: Raw) -> None:
        if self._head is None:
            raw.buffers.clear()
            del raw.stamps[:]
        try:
            raw.unframe()
        except BadAnswer:
            pass  # `parse` sees that the framing was broken, before the end that is being noted

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable, raw = False, self._raw
        if raw is None:
            return
        why = (str(exc) or type(exc).__name__) if exc else "the server closed the connection"
        self.silent_loss = raw.first_byte_s is None and not raw.buffers
        if self._head is None:
            self._unframe_quietly(raw)
            text = f"connection lost before the answer: {why}"
            return self._fail("http_error", text, "lost")
        framing: Framing = raw.framing
        if framing.length == -1 and exc is None:
            framing.ended = True
            return self._end()
        self._unframe_quietly(raw)
        return self._fail("truncated", f"the stream was cut: {why}", "cut")

    def abort(self) -> None:
        """Close at once; an exchange that runs is the caller's to note."""
        self.usable = False
        if self._timer:
            self._timer.cancel()
        self._stamp = self._keep = _ignore
        if self._raw is not None:  # cancelled: keep what is readable of it
            self._unframe_quietly(self._raw)
            self._raw = None
        if self._transport is not None:
            self._transport.abort()


def _ignore(_: object) -> None:
    """In place of the lists of an exchange while there is none."""

"""Marks around the parts of an iteration: host time by a stack, device time by pooled events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

HOST_PARTS = (
    "record", "receive", "schedule", "launch", "worker", "target", "ngram", "draft", "verify",
    "draft_extend", "process",
)  # fmt: skip
"""Parts of an iteration in their usual order; each has an entry and an exit mark of its own."""

DEVICE_PARTS = frozenset({"target", "draft", "verify", "draft_extend"})


class HostMarks:
    """Seconds by part; a part that opens inside another one pauses it.

    Parameters
    ----------
    clock : seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def __contains__(self, part: str) -> bool:
        return part in self._open

    def begin(self, part: str) -> int:
        """Open a part; the depth to give to `end`."""
        now = self.clock()
        self._book(now)
        self._open.append(part)
        return len(self._open)

    def end(self, depth: int) -> None:
        """Close the part that was opened at ``depth`` and whatever was left open inside it."""
        self._book(self.clock())
        del self._open[depth - 1 :]

    def take(self) -> dict[str, float]:
        """Seconds since the last call; parts that are still open go on from here."""
        self._book(self.clock())
        taken, self.seconds = self.seconds, {}
        return taken

    def _book(self, now: float) -> None:
        if self._open:
            part = self._open[-1]
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now


class DeviceMarks:
    """Pairs of device events around parts; read only when the device has passed them.

    Nothing here waits for the device: an event that is not done yet is asked again later. Events
    come from a pool, and a part gets no pair when the pool is used up.

    Parameters
    ----------
    make : a new event with ``record()``, ``query()`` and ``elapsed_time(other)`` (milliseconds).
    limit : most events that ever exist.
    """

    def __init__(self, make: Callable[[], Any], limit: int = 4096) -> None:
        self._make, self._left = make, limit
        self._free: deque[Any] = deque()
        self.pairs: list[tuple[str, Any, Any]] = []  # of the iteration that runs now

    def begin(self, part: str) -> tuple[str, Any] | None:
        """Record the start of a part on the current stream; None when the pool is used up."""
        if (event := self._event()) is None:
            return None
        event.record()
        return part, event

    def end(self, begun: tuple[str, Any] | None) -> None:
        """Record the end of a part."""
        if begun is None:
            return
        if (event := self._event()) is None:
            self._free.append(begun[1])
            return
        event.record()
        self.pairs.append((*begun, event))

    def take(self) -> list[tuple[str, Any, Any]]:
        """Pairs since the last call."""
        taken, self.pairs = self.pairs, []
        return taken

    def read(self, pairs: list[tuple[str, Any, Any]]) -> dict[str, float] | None:
        """Seconds by part once every event is done, and the events back in the pool; else None."""
        if not all(end.query() for _, _, end in pairs):
            return None
        seconds: dict[str, float] = {}
        for part, start, end in pairs:
            seconds[part] = seconds.get(part, 0.0) + start.elapsed_time(end) / 1e3
            self._free += (start, end)
        return seconds

    def discard(self, pairs: list[tuple[str, Any, Any]]) -> None:
        """Give events back unread."""
        for _, start, end in pairs:
            self._free += (start, end)

    def _event(self) -> Any | None:
        if self._free:
            return self._free.popleft()
        if self._left <= 0:
            return None
        self._left -= 1
        return self._make()

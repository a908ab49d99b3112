"""Background writer of the iteration stream: JSON lines that survive a kill.

Lines, each one object:

``{"stream": 1, ...}``
    First: what was recorded where.
``{"request": n, "id": text}``
    From here on request ``n`` of a record is the server's request ``id``.
``{"i": sequence number, ...}``
    One iteration (`recorder.Recorder`). A missing number is a record that was dropped.
``{"until_s": t, "dropped": n}``
    Everything that ended before ``t`` (run's clock) has been written, but for ``n`` records.
``{"end": reason, "until_s": t, "dropped": n}``
    Last, of a server that was not killed. A reason that begins with "failed" is the recorder's
    own failure: the server goes on and nothing after ``t`` is recorded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

PERIOD_S = 0.25  # a killed server loses what was recorded since the last round, at most this long
CAPACITY = 100_000  # records that wait for the writer; more are counted and dropped
KNOWN_IDS = 10_000
log = logging.getLogger(__name__)


class Writer:
    """Takes records from one thread and writes them on another.

    `put` never waits. Records are written one at a time, so that the interpreter can go on with
    the scheduler between two of them.

    Parameters
    ----------
    path : file of the stream; an old one is replaced.
    header : object of the first line.
    clock : the run's clock.
    start : False leaves the writing to calls of `flush` (tests).
    """

    def __init__(
        self,
        path: Path | str,
        header: dict[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        capacity: int = CAPACITY,
        start: bool = True,
    ) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._clock, self._capacity = clock, capacity
        self._waiting: deque[dict[str, Any]] = deque()
        self._ids: dict[str, int] = {}
        self._next_id = 0
        self.dropped = 0
        self._writing = threading.RLock()  # a signal may arrive while this thread flushes
        self._stop = threading.Event()
        self._closed = False
        self._failure: str | None = None
        self._until_s = clock()
        self._line({"stream": 1, **header})
        self._thread = threading.Thread(target=self._run, name="kvtop-recorder", daemon=True)
        if start:
            self._thread.start()

    def put(self, record: dict[str, Any]) -> None:
        """Hand over a record; dropped and counted when too many wait."""
        if self._closed or len(self._waiting) >= self._capacity:
            self.dropped += 1
        else:
            self._waiting.append(record)

    def fail(self, reason: str) -> None:
        """Let the stream end, as soon as it is written, where it was last known to be whole."""
        self._failure = reason

    def flush(self) -> None:
        """Write what waits, and up to when nothing is missing."""
        if self._failure is not None:
            return self.close("failed")
        until_s = self._clock()
        with self._writing:
            if not self._closed:
                self._drain()
                if self._failure is None:
                    self._line({"until_s": until_s, "dropped": self.dropped})
                    self._until_s = until_s

    def close(self, reason: str) -> None:
        """Write what waits and the last line; a second call does nothing."""
        self._stop.set()
        with self._writing:
            if self._closed:
                return
            if self._failure is None:
                self._drain()
            until_s = self._clock()
            if self._failure is not None:
                reason, until_s = f"failed: {self._failure}", self._until_s
            self._closed = True
            with contextlib.suppress(OSError):  # a full disk: the file ends before it
                self._line({"end": reason, "until_s": until_s, "dropped": self.dropped})
            os.close(self._file)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.flush()
            except OSError:  # a full disk: the file ends here and says until when it is whole
                log.warning("the recorder cannot write and is off", exc_info=True)
                self._closed = True
                return

    def _drain(self) -> None:
        while self._waiting and self._failure is None:
            record = self._waiting.popleft()
            try:
                record["requests"] = [self._number(rid) for rid in record.get("requests", ())]
                self._line(record)
            except (TypeError, ValueError) as e:  # not an object of JSON
                log.warning("the recorder failed and is off; serving goes on", exc_info=True)
                self.fail(f"{type(e).__name__}: {e}")

    def _number(self, rid: str) -> int:
        if (known := self._ids.get(rid)) is not None:
            return known
        if len(self._ids) >= KNOWN_IDS:
            self._ids.clear()
        number = self._ids[rid] = self._next_id
        self._next_id += 1
        self._line({"request": number, "id": rid})
        return number

    def _line(self, record: dict[str, Any]) -> None:
        data = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        while data:  # a signal may cut a write short
            data = data[os.write(self._file, data) :]


def close_on_sigterm(recorder: Any, writer: Writer) -> None:
    """Write what is there before the signal does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals are not ours to take; the writer is a quarter of a second behind at most
    before = signal.getsignal(signal.SIGTERM)

    def close(number, frame):
        recorder.close()
        with contextlib.suppress(OSError):
            writer.close("SIGTERM")
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, close)

"""One record per scheduler iteration, assembled on the scheduler's thread and written elsewhere.

A pass of the scheduler's loop goes from one `pass_begins` to the next; a pass that runs a batch
is an iteration. With overlapped scheduling the results of a batch are processed one pass later:
the times of a record are those of its pass, the tokens those of its batch.

Other parts of the plug-in tell what only they know by `note` and `part`; both do nothing while
no recorder is active.

An error in here never reaches the scheduler: it is logged, and the recording ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .recorder_marks import DEVICE_PARTS, DeviceMarks, HostMarks

active: Recorder | None = None  # set by `hooks_recorder`, one per process
OPEN_RECORDS = 256  # iterations that may wait for device times before these are given up
log = logging.getLogger(__name__)


def note(**facts: Any) -> None:
    """Add facts to the iteration that runs now.

    Parameters
    ----------
    facts
        ``source``: who drafted for each request of the batch (list of "mtp", "ngram" or "none");
        ``widths``: tokens verified for each request (list); anything else becomes a field of the
        record's ``more``.
    """
    if active is not None:
        active.note(**facts)


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Book the time of a block under a part of `recorder_marks.HOST_PARTS`."""
    if active is None:
        yield
        return
    begun = active.begin(name)
    try:
        yield
    finally:
        active.end(begun)


def _guarded(method: Callable) -> Callable:
    """`Recorder.safely` for a method."""

    @functools.wraps(method)
    def safe(self, *args, **kwargs):
        return self.safely(method, self, *args, **kwargs)

    return safe


class Recorder:
    """Assembles records.

    A record has ``i`` (number), ``t_s`` (start), ``dur_s`` (to the start of the next pass),
    ``mode`` (prefill, decode, verify, mixed, stall), what `hooks_recorder` describes of the batch
    and its results, ``parts`` (host seconds by part, each between marks of its own), ``device``
    (device seconds by part; absent without a device) and ``retracted``.

    Parameters
    ----------
    put : takes a finished record; must not block.
    fail : told once, in a few words, why the recording has ended; must not block.
    clock : seconds, monotonic.
    device : marks on a device, None on a CPU.
    """

    def __init__(
        self,
        put: Callable[[dict[str, Any]], None],
        *,
        fail: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
        device: DeviceMarks | None = None,
    ) -> None:
        self._put, self._fail, self._clock, self._device = put, fail, clock, device
        self.failed = False
        self.marks = HostMarks(clock)
        self._number = 0
        self._start_s: float | None = None
        self._record: dict[str, Any] | None = None  # of this pass, once it runs a batch
        self._stalled: dict[str, Any] | None = None
        self._open: deque[tuple[dict[str, Any], list]] = deque()  # passes done, results maybe not
        self._unprocessed: dict[int, dict[str, Any]] = {}
        self.retracted = 0

    def safely(self, do: Callable, *args: Any, **kwargs: Any) -> Any:
        """What ``do`` returns; None once it, or anything before it, has failed."""
        if self.failed:
            return None
        try:
            return do(*args, **kwargs)
        except Exception as e:
            self.failed = True
            log.warning("the recorder failed and is off; serving goes on", exc_info=True)
            self._fail(f"{type(e).__name__}: {e}")
            return None

    # ---- marks ---------------------------------------------------------------------------------

    @_guarded
    def begin(self, name: str) -> tuple[int, Any]:
        """Open a part; give what this returns to `end`."""
        depth = self.marks.begin(name)
        wanted = self._device is not None and name in DEVICE_PARTS
        return depth, self._device.begin(name) if wanted else None

    @_guarded
    def end(self, begun: tuple[int, Any]) -> None:
        """Close a part."""
        if begun[1] is not None:
            self._device.end(begun[1])
        self.marks.end(begun[0])

    # ---- a pass --------------------------------------------------------------------------------

    @_guarded
    def pass_begins(self, queued: int = 0, running: int = 0) -> None:
        """End the pass before and begin one; called first in every pass.

        Parameters
        ----------
        queued, running : requests, to record a pass that left requests waiting and ran nothing.
        """
        now, parts = self._clock(), self.marks.take()
        begun = self.marks.begin("record")
        if self._record is not None:
            record, self._record = self._record, None
            record |= {"dur_s": now - record["t_s"], "parts": parts, "retracted": self.retracted}
            self.retracted = 0
            self._open.append((record, self._device.take() if self._device else []))
        elif self._start_s is not None and queued:
            self._stalled = self._stalled or {"t_s": self._start_s, "mode": "stall", "parts": {}}
            self._stalled |= {"queued": queued, "running": running, "dur_s": 0.0}
        else:
            self._end_stall(now)
        self._hand_over()
        self._start_s = now
        self.marks.end(begun)

    @_guarded
    def batch_begins(self, facts: dict[str, Any]) -> None:
        """This pass runs a batch that ``facts`` describe."""
        self._end_stall(self._start_s)
        start_s = self._clock() if self._start_s is None else self._start_s
        self._record = {"t_s": start_s, **facts}

    @_guarded
    def batch_launched(self, result: object, facts: dict[str, Any]) -> None:
        """The batch has run; its ``result`` object is met again in `batch_processed`."""
        if self._record is not None:
            self._record |= facts
            self._record["_done"] = False
            self._unprocessed[id(result)] = self._record

    @_guarded
    def batch_processed(self, result: object, facts: dict[str, Any]) -> None:
        """The results of a batch are processed; ``facts`` tell tokens and drafts per request."""
        if (record := self._unprocessed.pop(id(result), None)) is not None:
            record |= facts
            record["_done"] = True

    @_guarded
    def note(self, **facts: Any) -> None:
        """As the module's `note`."""
        if self._record is None:
            return
        known = {k: list(facts.pop(k)) for k in ("source", "widths") if k in facts}
        self._record |= known
        if facts:
            self._record["more"] = {**self._record.get("more", {}), **facts}

    @_guarded
    def close(self) -> None:
        """End the pass that runs and hand over what is there."""
        self.pass_begins()
        self._hand_over(all_of_them=True)

    def _end_stall(self, now: float | None) -> None:
        if self._stalled is not None and now is not None:
            stalled, self._stalled = self._stalled, None
            stalled["dur_s"] = now - stalled["t_s"]
            self._open.append((stalled, []))

    def _hand_over(self, all_of_them: bool = False) -> None:
        while self._open:
            record, pairs = self._open[0]
            give_up = all_of_them or len(self._open) > OPEN_RECORDS
            if not (record.get("_done", True) or give_up):
                return
            device = self._device.read(pairs) if pairs else None
            if pairs and device is None:
                if not give_up:
                    return
                self._device.discard(pairs)
            if device is not None:
                record["device"] = device
            if record.pop("_done", True) is False:
                record["unprocessed"] = True
                self._unprocessed = {k: v for k, v in self._unprocessed.items() if v is not record}
            record["i"], self._number = self._number, self._number + 1
            self._open.popleft()
            self._put(record)

"""Traffic of a point in one process: until when it sends, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.request import Client, clock


@dataclass
class Traffic:
    """State shared by the lanes that one process plays."""

    client: Client
    url: str
    bodies: Bodies
    plan: Plan
    start_s: float  # start of the point on the run's clock
    seed: int = 0
    open: bool = False  # an open loop: what is due is sent, also late
    on_end: Callable[[Record], None] = lambda record: None
    sent: int = 0
    ended: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "complete"  # or: exhausted, failed, aborted
    reason: str = ""
    fault: BaseException | None = None  # the client's own
    _parts: set[asyncio.Task] = field(default_factory=set)

    @property
    def w0_s(self) -> float:
        """Start of the window on the run's clock."""
        return self.start_s + self.plan.w0_s

    @property
    def end_s(self) -> float:
        """End of sending on the run's clock."""
        return self.start_s + self.plan.w1_s

    @property
    def sending(self) -> bool:
        """New requests may still be sent."""
        return not self.stop.is_set() and clock() < self.end_s

    def wants(self, due_s: float) -> bool:
        """Whether a request that is due then is sent.

        An open loop sends all that was due before the end, also when the client is late: what a
        slow client leaves out would be the slow requests.
        """
        at_s = due_s if self.open else max(due_s, clock())
        return not self.stop.is_set() and at_s < self.end_s

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self.sent - self.ended

    def note(self, record: Record) -> None:
        """Take a request that has ended."""
        self.ended += 1
        self.on_end(record)

    def halt(self, outcome: str, reason: str) -> None:
        """Stop sending; the first reason stays."""
        if not self.stop.is_set():
            self.outcome, self.reason = outcome, reason
            self.stop.set()

    def guard(self, work: Coroutine) -> asyncio.Task:
        """Start work beside the traffic; what goes wrong in it (``fault``) ends all of it."""

        def ended(task: asyncio.Task) -> None:
            if not task.cancelled() and task.exception():
                self.fail(task.exception())

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def fail(self, fault: BaseException) -> None:
        """End the traffic by a fault of the client; the first one stays."""
        self.fault = self.fault or fault
        self.halt("failed", str(self.fault))

    def begin(self, part: Coroutine) -> asyncio.Task:
        """Start a part of the traffic, which `drain` waits for; guarded."""
        task = self.guard(part)
        self._parts.add(task)
        task.add_done_callback(self._parts.discard)
        return task

    async def rest(self, seconds: float) -> None:
        """Sleep, but not past the end of sending."""
        left = self.end_s - clock()
        try:
            await asyncio.wait_for(self.stop.wait(), max(0.0, min(seconds, left)))
        except TimeoutError:
            pass

    async def until(self, due_s: float) -> None:
        """Sleep until a time on the run's clock, as `rest`."""
        while due_s > clock() and self.sending:  # a timer may fire a little early
            await self.rest(due_s - clock())

    async def drain(self) -> None:
        """Let what is under way end, for a limited time, and cancel the rest."""
        left_s = max(0.0, self.end_s + self.plan.drain_s - clock())
        await first_of(self._quiet(), self.stop, left_s)
        while self._parts:
            for part in self._parts:
                part.cancel()
            await asyncio.wait(self._parts)

    async def _quiet(self) -> None:
        while self._parts:  # a part may have begun others
            await asyncio.wait(self._parts)


async def first_of(
    ended: asyncio.Future | Coroutine, stop: asyncio.Event, seconds: float | None = None
) -> bool:
    """Wait for a future, but not past a stop nor for longer than this; whether it is done.

    A coroutine that is not done by then is cancelled, a future is not.
    """
    task, stopped = asyncio.ensure_future(ended), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        stopped.cancel()
        if task is not ended:
            task.cancel()

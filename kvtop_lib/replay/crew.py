"""The client's processes: who plays what, and what all of them have seen.

A point begins with one process, this one. More come only before its window, so that the window is
measured by one fixed set of them, with one fixed division of the lanes. Which session is played
next is decided here for all, so that none is played twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

import psutil

from kvtop_lib.replay.dealer import Dealer
from kvtop_lib.replay.health import LoopLag, together
from kvtop_lib.replay.lanes import Place
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.record import Ended, Record, numbered
from kvtop_lib.replay.remote import READY_S, Remote, told
from kvtop_lib.replay.request import clock
from kvtop_lib.replay.share import Share
from kvtop_lib.replay.traffic import Traffic, first_of
from kvtop_lib.replay.wire import Setup
from kvtop_lib.terms import KvtopError


class Crew:
    """All processes of a point; an async context manager, at whose end the others have ended.

    Parameters
    ----------
    traffic : of this process; its outcome is that of the point.
    setup : what the others need to know.
    sessions : of the point.
    on_end : told of every request that ends, in whichever process.

    Attributes
    ----------
    lag : of this process's loop; to be watched.
    others : the other processes of the client, for `kvtop_lib.replay.machine`.
    """

    def __init__(
        self,
        traffic: Traffic,
        setup: Setup,
        sessions: SessionSlice,
        on_end: Callable[[Ended], None],
    ) -> None:
        self._traffic, self._setup, self.note = traffic, setup, on_end
        self._dealer = Dealer(traffic, sessions)
        self.deal, self.feed, self.fail = self._dealer.deal, self._dealer.feed, traffic.fail
        self._own = Share(traffic, lambda: self.feed(self._own), self.deal)
        self._dealer.join(self._own)
        self._remotes: list[Remote] = []  # one that is about to come has joined nothing yet
        self._records: list[Record] = []
        self.lag, self.others, self._joined_s = LoopLag(), [], 0.0
        traffic.on_end = self._ended

    def __len__(self) -> int:
        return len(self._dealer.hands)

    async def __aenter__(self) -> Crew:
        self._stopping = self._traffic.guard(self._stop())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.cancel()
        await asyncio.gather(*(r.close() for r in self._remotes))

    async def _stop(self) -> None:
        await self._traffic.stop.wait()
        self._tell("stop")

    def _tell(self, *message: object) -> None:
        for remote in self._remotes:
            remote.send(*message)

    # ---- for the progress line

    @property
    def plan(self) -> Plan:
        """Plan of the point."""
        return self._traffic.plan

    @property
    def start_s(self) -> float:
        """Start of the point on the run's clock."""
        return self._traffic.start_s

    @property
    def in_flight(self) -> int:
        """Requests in flight, as last told."""
        return self._traffic.in_flight + sum(r.in_flight for r in self._remotes)

    @property
    def tokens(self) -> int:
        """Tokens read so far of the answers in flight, as last told."""
        return self._traffic.client.backlog.tokens + sum(r.tokens for r in self._remotes)

    def _ended(self, record: Record) -> None:
        self._records.append(record)
        self.note(record.ended)

    def lose(self, reason: str) -> None:
        """A process has ended by itself, which ends the point."""
        self._traffic.halt("failed", reason)

    # ---- the others

    @property
    def most(self) -> int:
        """Processes that there is something to play for."""
        return self._dealer.most

    @property
    def w0_s(self) -> float:
        """Start of the window, from which on the processes stay as they are."""
        return self._traffic.w0_s

    @property
    def lag_s(self) -> list[float | None]:
        """Recent lag of every process."""
        return [self.lag.recent_s(clock()), *(r.lag_s for r in self._remotes)]

    @property
    def settled_s(self) -> float:
        """Since when every process has had its lanes; infinity before all have moved."""
        dealer = self._dealer
        return max(self._joined_s, dealer.from_s) if dealer.settled else math.inf

    @property
    def _joined(self) -> list[Remote]:
        return [r for r in self._remotes if r in self._dealer.hands]

    @property
    def _late(self) -> bool:
        """A process that joined now would play nothing before the window."""
        return max(clock(), self._dealer.next_s) >= self.w0_s

    async def _start(self, *, needed: bool = True) -> Remote:
        remote = Remote(self, needed)
        self._remotes.append(remote)
        self.others.append(psutil.Process(remote.pid))
        await remote.meet(self._setup)
        self._traffic.guard(remote.listen())
        return remote

    async def add(self) -> None:
        """Take a process in while the point runs, unless it comes too late for the window.

        Raises
        ------
        KvtopError, OSError
            When it cannot begin; the point goes on without it.
        """
        if self._late:
            return
        remote = await self._start(needed=False)
        remote.send("begin", self.start_s)
        remote.send("prepare")
        left_s = max(0.0, self.w0_s - clock())
        is_ready = await first_of(remote.ready.wait(), self._traffic.stop, left_s)
        if remote.lost or not is_ready or self._late:
            await remote.close()
            self._remotes.remove(remote)
            if remote.lost:
                raise KvtopError(remote.lost)
            return
        remote.needed = True
        self._joined_s = clock()
        self._dealer.join(remote)

    # ---- the course of a point

    async def prepare(self, number: int, places: Iterable[Place]) -> None:
        """Begin with as many processes, deal, and have all bodies made that are due first."""
        others = [await self._start() for _ in range(1, min(number, self.most))]
        self._dealer.join(*others)
        for place in places:
            self.deal(place)
        self._tell("prepare")
        await self._traffic.bodies.ready()
        for remote in self._remotes:
            if not await first_of(remote.ready.wait(), self._traffic.stop, READY_S):
                self.lose(f"a client process did not begin within {READY_S:g} s; measure again")

    def begin(self, start_s: float) -> None:
        """Begin the point, in all processes."""
        self._own.begin(start_s)
        self._tell("begin", start_s)

    def last(self) -> None:
        """No arrival comes any more."""
        self._tell("last")

    async def over(self) -> None:
        """Wait until the others have told all, which is soon after the drain."""
        t = self._traffic
        left_s = max(0.0, t.end_s + t.plan.drain_s - clock())
        if not await told(self._joined, t.stop, left_s):
            self.lose("a client process did not say how its requests ended; measure again")

    def records(self) -> list[Record]:
        """Every request of every process, in order of sending."""
        return numbered(self._records, *(r.records() for r in self._joined))

    def facts(self) -> dict:
        """Health of the client over all its processes, for the records."""
        t = self._traffic
        own = self.lag.summary(t.w0_s, t.end_s) | t.client.facts()
        others = [r.facts for r in self._joined if r.facts]
        playing = 1 + sum(r.lanes > 0 for r in self._joined)
        return {"processes": playing, **together([own, *others])}

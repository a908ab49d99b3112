"""What one client process plays: lanes and the sessions that lie ready for them, or arrivals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace

from kvtop_lib.replay.lanes import Place, play
from kvtop_lib.replay.request import clock
from kvtop_lib.replay.traffic import Traffic
from kvtop_lib.trace.model import Session


class Share:
    """The share of this process.

    A session that lies ready has its first body made, so that a lane need not wait for either;
    which one that is the first process decides, for all of them (`kvtop_lib.replay.crew`).

    Parameters
    ----------
    traffic : of this process.
    took : told when a lane wants a session; one is put in return, unless there is none left.
    moved : told the place of a lane that leaves.

    Attributes
    ----------
    lanes, quota : lanes that are played here, and how many may stay.
    stocked : sessions that lie ready; below 0, lanes that wait for one.
    """

    def __init__(
        self, traffic: Traffic, took: Callable[[], None], moved: Callable[[Place], None]
    ) -> None:
        self._traffic, self._took, self._moved = traffic, took, moved
        self.lanes, self.quota, self.stocked = 0, sys.maxsize, 0
        self._ready: asyncio.Queue[Session] = asyncio.Queue()
        self._held: list[Place] | None = []

    def play(self, place: Place) -> None:
        """Play from a place on; before the point has begun, from its beginning."""
        self.lanes += 1
        if place.session:
            self._traffic.bodies.ahead(place.session, place.turn)
        if self._held is None:
            self._traffic.begin(play(self._traffic, place, None if self._traffic.open else self))
        else:
            self._held.append(place)

    def begin(self, start_s: float) -> None:
        """Begin the point at this time on the run's clock."""
        self._traffic.start_s = start_s
        held, self._held, self.lanes = self._held or [], None, 0
        for place in held:
            self.play(replace(place, due_s=start_s + place.due_s))

    def put(self, session: Session) -> None:
        """Lay a session ready."""
        self.stocked += 1
        self._traffic.bodies.ahead(session, 0)
        self._ready.put_nowait(session)

    def allow(self, lanes: int) -> None:
        """Keep so many lanes; those above leave at the end of a turn, until the window begins."""
        self.quota = lanes

    async def take(self) -> Session:
        """The next session, as soon as there is one."""
        self.stocked -= 1
        self._took()
        return await self._ready.get()

    def leaves(self, at: Place) -> bool:
        """Whether a lane leaves for another process, which may take it from there."""
        if self.lanes <= self.quota or clock() >= self._traffic.w0_s:
            return False
        self.lanes -= 1
        if at.session:
            self._traffic.bodies.drop(at.session, at.turn)
        self._moved(at)
        return True

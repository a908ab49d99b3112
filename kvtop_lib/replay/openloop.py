"""Open loop: sessions start at their own times, whether or not the server keeps up."""

from __future__ import annotations

import asyncio

from kvtop_lib.replay.lanes import Traffic, play_session
from kvtop_lib.replay.pool import SessionSlice

AHEAD = 32
"""First bodies that are made ahead: more than the sources' clock ticks bring at once."""


async def arrive(traffic: Traffic, sessions: SessionSlice) -> None:
    """Start every session of the slice at its time and wait until all have ended.

    No start is left out or moved: one that the client is late for is sent at once, and its
    lateness is in the latencies from the intended time. There is no limit to the requests in
    flight. Inside a session the loop is closed: a turn cannot be asked before the answer that it
    follows. The number of the arrival stands in the records as the lane.
    """
    playing: set[asyncio.Task] = set()
    try:
        for number, after_s in enumerate(sessions.times_s):
            session, due_s = sessions.take(), traffic.start_s + after_s
            for coming in sessions.coming(AHEAD)[-1:]:
                traffic.bodies.ahead(coming, 0)
            await traffic.until(due_s)
            if traffic.stop.is_set():
                break
            turns = play_session(traffic, number, session, due_s)
            playing.add(traffic.begin(turns))
        await asyncio.gather(*playing)
    finally:  # nothing is left when all went well
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)

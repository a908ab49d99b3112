"""Open loop: sessions start at their own times, whether or not the server keeps up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kvtop_lib.replay.lanes import Place
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.traffic import Traffic

AHEAD = 32
"""Arrivals that are dealt, and whose bodies are made, ahead: more than come in one clock tick."""


def arrivals(sessions: SessionSlice) -> Iterator[Place]:
    """Every session of the slice at its time; its number stands in the records as the lane."""
    for number, after_s in enumerate(sessions.times_s):
        yield Place(number, after_s, sessions.take())


async def arrive(
    traffic: Traffic,
    coming: Iterable[Place],
    times_s: tuple[float, ...],
    deal: Callable[[Place], None],
) -> None:
    """Deal what comes to those that play it, `AHEAD` arrivals before it is due.

    No start is left out or moved: one that the client is late for is sent at once, and its
    lateness is in the latencies from the intended time. There is no limit to the requests in
    flight. Inside a session the loop is closed: a turn cannot be asked before the answer that it
    follows.
    """
    for place in coming:
        await traffic.until(traffic.start_s + times_s[max(0, place.lane - AHEAD)])
        if traffic.stop.is_set():
            break
        deal(replace(place, due_s=traffic.start_s + place.due_s))

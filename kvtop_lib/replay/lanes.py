"""Lanes of a closed loop, and what they share with arrivals: turns on recorded history.

A request has an intended time, whatever the client is busy with: in a lane the end of the answer
before it (or the lane's start) plus the think time, in an open loop (`kvtop_lib.replay.openloop`)
the arrival, and for later turns again the answer before plus the think time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Protocol

from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import clock, send
from kvtop_lib.replay.traffic import Traffic
from kvtop_lib.trace.model import Session

FAILURE_PAUSE_S = 0.5
"""A lane waits this long after a failed request, so that a dead server does not eat the trace."""


@dataclass(frozen=True)
class Place:
    """Where a lane is: the turn that it sends next, and when that is due."""

    lane: int  # in an open loop the number of the arrival
    due_s: float  # on the run's clock; before the point has begun, seconds after its start
    session: Session | None = None  # None: whichever comes next
    turn: int = 0


class Lanes(Protocol):
    """Those of one process (`kvtop_lib.replay.share.Share`)."""

    async def take(self) -> Session:
        """The next session."""

    def leaves(self, at: Place) -> bool:
        """Whether a lane goes on in another process, which has been told."""


def lane_starts(c: int, plan: Plan, seed: int) -> list[float]:
    """Seconds after the point's start at which each lane sends its first request.

    Spread evenly over the stagger, with a seeded jitter inside each lane's own share, so that
    lanes are neither in step nor late: all have started when the burn-in ends.
    """
    spread = min(plan.stagger_s, plan.burn_in_s)
    rng = random.Random(f"kvtop-stagger-{seed}")
    return [spread * (i + rng.random()) / c for i in range(c)]


def first_turn(plan: Plan, seed: int, lane: int, turns: int) -> int:
    """Turn at which a lane enters its first session.

    A random one makes lanes start as if they had been playing for long, so that short and long
    histories are there from the beginning; its first request is cold, as no turn before it has
    left anything in the prefix cache.
    """
    if plan.start == "first_turn":
        return 0
    return random.Random(f"kvtop-turn-{seed}-{lane}").randrange(turns)


def first_places(c: int, plan: Plan, seed: int, sessions: SessionSlice) -> list[Place]:
    """Where the lanes begin, each with the next session of the slice."""
    places = []
    for lane, after_s in enumerate(lane_starts(c, plan, seed)):
        session = sessions.take()
        turn = first_turn(plan, seed, lane, len(session.turns))
        places.append(Place(lane, after_s, session, turn))
    return places


async def play(traffic: Traffic, at: Place, lanes: Lanes | None = None) -> None:
    """Play from a place on, turn by turn, until sending ends.

    With ``lanes`` session after session, unless the lane leaves for another process; without
    them this one session, an arrival of an open loop.
    """
    while at.session or lanes:
        if at.session is None:
            await traffic.until(at.due_s)
            if not traffic.sending:
                return
            at = replace(at, session=await lanes.take())
        if traffic.stop.is_set():  # then bodies may have been given up
            return
        data = await traffic.bodies.take(at.session, at.turn)
        await traffic.until(at.due_s)
        if not traffic.wants(at.due_s):
            return
        traffic.bodies.ahead(at.session, at.turn + 1)
        at = _next(traffic, at, await _request(traffic, at, data))
        if lanes and lanes.leaves(at):
            return


def _next(traffic: Traffic, at: Place, record: Record) -> Place:
    """Where a lane is when a request has ended.

    A session whose turn failed is given up, and so is one whose turn was aborted on purpose:
    with recorded history the text of the next turn would be right, but the server's prefix
    cache would not be.
    """
    due_s, k = record.raw.end_s, at.turn + 1
    if not record.ok:
        traffic.bodies.drop(at.session, k)
        return Place(at.lane, due_s + (FAILURE_PAUSE_S if record.cancel_after_s is None else 0.0))
    if k == len(at.session.turns):
        return Place(at.lane, due_s)
    return Place(at.lane, due_s + traffic.plan.think_s(at.session.turns[k].think_s), at.session, k)


async def _request(traffic: Traffic, at: Place, data: bytes) -> Record:
    session, k, plan = at.session, at.turn, traffic.plan
    turn, number, raw = session.turns[k], traffic.sent, Raw()
    cancel_after_s = plan.cancel_after_s(traffic.seed, session.id, k)
    traffic.sent += 1
    try:
        async with asyncio.timeout(cancel_after_s):
            await send(traffic.client, traffic.url, data, raw)
    except TimeoutError:  # `send` raises none: this is the abort on purpose
        said = f"aborted on purpose after {cancel_after_s:.3f} s"
        raw.failure = ("cancelled", said, "on_purpose")
    finally:  # also when cancelled: what arrived is recorded
        if raw.sent_s is None:
            raw.sent_s = raw.end_s = clock()
        record = Record(
            request=number,
            lane=at.lane,
            session=session.id,
            turn=k,
            phase=plan.phase((at.due_s if traffic.open else raw.sent_s) - traffic.start_s),
            intended_s=at.due_s,
            raw=raw,
            reply=parse(raw),
            expected_output=turn.output if plan.output == "natural" else None,
            expected_output_tokens=turn.output_tokens,
            cancel_after_s=cancel_after_s,
            shared_tokens=None if session.follows(k) else session.shared_tokens(k),
            blocks=(turn.blocks, turn.prompt_tokens) if turn.blocks else None,
        )
        raw.forget()
        traffic.note(record)
    return record

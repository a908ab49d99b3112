"""Traffic of a point, and its closed loop: c lanes play sessions turn by turn, on recorded history.

A request has an intended time, whatever the client is busy with: in a lane the end of the answer
before it (or the lane's start) plus the think time, in an open loop (`kvtop_lib.replay.openloop`)
the arrival, and for later turns again the answer before plus the think time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import PoolExhausted, SessionSlice
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import Client, clock, send

FAILURE_PAUSE_S = 0.5
"""A lane waits this long after a failed request, so that a dead server does not eat the trace."""


@dataclass
class Traffic:
    """State shared by the lanes of one point."""

    client: Client
    url: str
    bodies: Bodies
    plan: Plan
    start_s: float  # start of the point on the run's clock
    seed: int = 0
    open: bool = False  # an open loop: what is due is sent, also late
    on_end: Callable[[Record], None] = lambda record: None
    records: list[Record] = field(default_factory=list)
    sent: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "complete"  # or: exhausted, failed, aborted
    reason: str = ""
    fault: BaseException | None = None  # the client's own

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
        return self.sent - len(self.records)

    def halt(self, outcome: str, reason: str) -> None:
        """Stop sending; the first reason stays."""
        if not self.stop.is_set():
            self.outcome, self.reason = outcome, reason
            self.stop.set()

    def begin(self, part: Coroutine) -> asyncio.Task:
        """Start a part of the traffic; what goes wrong in it (``fault``) ends all of it."""

        def ended(task: asyncio.Task) -> None:
            if not task.cancelled() and task.exception():
                self.fault = self.fault or task.exception()
                self.halt("failed", str(self.fault))

        task = asyncio.create_task(part)
        task.add_done_callback(ended)
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


async def first_of(
    ended: asyncio.Future, stop: asyncio.Event, seconds: float | None = None
) -> bool:
    """Wait for a future, but not past a stop nor for longer than this; whether it is done."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    return ended.done()


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


async def play(traffic: Traffic, lane: int, start_after_s: float, sessions: SessionSlice) -> None:
    """Run one lane until sending ends."""
    due_s, fresh = traffic.start_s + start_after_s, True
    await traffic.until(due_s)
    while traffic.sending:
        try:
            session = sessions.take()
        except PoolExhausted as e:
            return traffic.halt("exhausted", str(e))
        for coming in sessions.coming(sessions.load)[-1:]:
            traffic.bodies.ahead(coming, 0)
        n = len(session.turns)
        first = first_turn(traffic.plan, traffic.seed, lane, n) if fresh else 0
        due_s, fresh = await play_session(traffic, lane, session, due_s, first), False
        await traffic.until(due_s)
    return None


async def play_session(traffic: Traffic, lane: int, session, due_s: float, first: int = 0) -> float:
    """Play a session from turn ``first``, due at ``due_s``, until it or sending ends.

    A session whose turn failed is given up, and so is one whose turn was aborted on purpose:
    with recorded history the text of the next turn would be right, but the server's prefix
    cache would not be.

    Returns
    -------
    float
        When its lane is free for the next session, after a pause if a turn failed.
    """
    for k in range(first, len(session.turns)):
        if k > first:
            due_s += traffic.plan.think_s(session.turns[k].think_s)
        data = await traffic.bodies.take(session, k)
        await traffic.until(due_s)
        if not traffic.wants(due_s):
            return due_s
        traffic.bodies.ahead(session, k + 1)
        record = await _request(traffic, lane, session, k, due_s, data)
        due_s = record.raw.end_s
        if not record.ok:
            traffic.bodies.drop(session, k + 1)
            return due_s + (FAILURE_PAUSE_S if record.cancel_after_s is None else 0.0)
    return due_s


async def _request(
    traffic: Traffic, lane: int, session, k: int, due_s: float, data: bytes
) -> Record:
    turn, plan = session.turns[k], traffic.plan
    number, raw = traffic.sent, Raw()
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
            lane=lane,
            session=session.id,
            turn=k,
            phase=plan.phase((due_s if traffic.open else raw.sent_s) - traffic.start_s),
            intended_s=due_s,
            raw=raw,
            reply=parse(raw),
            expected_output=turn.output if plan.output == "natural" else None,
            expected_output_tokens=turn.output_tokens,
            cancel_after_s=cancel_after_s,
            shared_tokens=None if session.follows(k) else session.shared_tokens(k),
            blocks=(turn.blocks, turn.prompt_tokens) if turn.blocks else None,
        )
        raw.buffers.clear()
        traffic.records.append(record)
        traffic.on_end(record)
    return record

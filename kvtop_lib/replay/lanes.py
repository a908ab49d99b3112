"""Closed loop: c lanes, each plays sessions turn by turn on their recorded history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import PoolExhausted, SessionSlice
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import Client, body, clock, send

FAILURE_PAUSE_S = 0.5
"""A lane waits this long after a failed request, so that a dead server does not eat the trace."""


@dataclass
class Traffic:
    """State shared by the lanes of one point."""

    client: Client
    url: str
    model: str
    plan: Plan
    start_s: float  # start of the point on the run's clock
    on_end: Callable[[Record], None] = lambda record: None
    records: list[Record] = field(default_factory=list)
    sent: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "complete"  # or: exhausted, failed, aborted
    reason: str = ""

    @property
    def sending(self) -> bool:
        """New requests may still be sent."""
        return not self.stop.is_set() and clock() < self.start_s + self.plan.w1_s

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self.sent - len(self.records)

    def halt(self, outcome: str, reason: str) -> None:
        """Stop sending; the first reason stays."""
        if not self.stop.is_set():
            self.outcome, self.reason = outcome, reason
            self.stop.set()

    async def rest(self, seconds: float) -> None:
        """Sleep, but not past the end of sending."""
        left = self.start_s + self.plan.w1_s - clock()
        try:
            await asyncio.wait_for(self.stop.wait(), max(0.0, min(seconds, left)))
        except TimeoutError:
            pass


def lane_starts(c: int, plan: Plan, seed: int) -> list[float]:
    """Seconds after the point's start at which each lane sends its first request.

    Spread evenly over the stagger, with a seeded jitter inside each lane's own share, so that
    lanes are neither in step nor late: all have started when the burn-in ends.
    """
    spread = min(plan.stagger_s, plan.burn_in_s)
    rng = random.Random(f"kvtop-stagger-{seed}")
    return [spread * (i + rng.random()) / c for i in range(c)]


async def play(traffic: Traffic, lane: int, start_after_s: float, sessions: SessionSlice) -> None:
    """Run one lane until sending ends.

    A session whose turn failed is given up and the lane takes the next one after a pause: with
    recorded history the text of the next turn would be right, but the server's prefix cache
    would not be.
    """
    await traffic.rest(start_after_s)
    while traffic.sending:
        try:
            session = sessions.take()
        except PoolExhausted as e:
            return traffic.halt("exhausted", str(e))
        for k, turn in enumerate(session.turns):
            if k and traffic.plan.think_factor:
                await traffic.rest(turn.think_s * traffic.plan.think_factor)
            if not traffic.sending:
                return None
            if not (await _request(traffic, lane, session, k)).ok:
                await traffic.rest(FAILURE_PAUSE_S)
                break
    return None


async def _request(traffic: Traffic, lane: int, session, k: int) -> Record:
    turn, plan, intended_s = session.turns[k], traffic.plan, clock()
    messages, dialect = session.request_messages(k), traffic.client.dialect
    data = body(traffic.model, messages, plan, turn.output_tokens, dialect)
    number, raw = traffic.sent, Raw()
    traffic.sent += 1
    try:
        await send(traffic.client, traffic.url, data, raw)
    finally:  # also when cancelled: what arrived is recorded
        record = Record(
            request=number,
            lane=lane,
            session=session.id,
            turn=k,
            phase=plan.phase(raw.sent_s - traffic.start_s),
            intended_s=intended_s,
            raw=raw,
            reply=parse(raw),
            expected_output=turn.output if plan.output == "natural" else None,
            expected_output_tokens=turn.output_tokens,
        )
        raw.buffers.clear()
        traffic.records.append(record)
        traffic.on_end(record)
    return record

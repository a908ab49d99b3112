"""The traffic of one point inside an event loop: drive the load, drain, write what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtop_lib.params.shape import Load, OpenLoad
from kvtop_lib.replay import openloop, record, scrape
from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.dialect import SGLANG, Api, learn
from kvtop_lib.replay.health import LoopLag
from kvtop_lib.replay.lanes import Traffic, first_of, first_turn, lane_starts, play
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.progress import Progress
from kvtop_lib.replay.request import clock, session
from kvtop_lib.store import write_json
from kvtop_lib.terms import SCHEMA

GIVE_UP_AFTER = 10
"""A point ends as ``failed`` when this many requests (or 2 c) have ended and none was ok."""

OPEN_STREAMS = 512
"""Streams at once that the open-file limit is raised for in an open loop."""


@dataclass
class Job:
    """One point that is being replayed; parameters as in `kvtop_lib.replay.run_point`."""

    url: str
    model: str
    sessions: SessionSlice
    load: Load
    plan: Plan
    seed: int
    out_dir: Path
    labels: dict
    scrape_s: float
    progress: Progress
    api: Api = "chat"
    interrupted: bool = field(default=False, init=False)
    _traffic: Traffic | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _halted: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def _connections(self) -> int:
        """Streams that may be open at once; of an open load a guess, it may need more."""
        lanes = isinstance(self.load, int)
        return self.load if lanes else min(len(self.sessions), OPEN_STREAMS)

    def interrupt(self) -> None:
        """Stop sending, cancel what is in flight, write what was recorded; from any thread."""
        self.interrupted = True
        if self._loop:
            with contextlib.suppress(RuntimeError):  # the loop has closed: all is written
                self._loop.call_soon_threadsafe(self._halt)

    def _halt(self) -> None:
        self._halted.set()
        if self._traffic:
            self._traffic.halt("aborted", "interrupted")

    async def run(self) -> None:
        """Replay and write; returns when all files of the point are there."""
        self._loop = asyncio.get_running_loop()
        if self.interrupted:  # before there was a loop to tell
            self._halted.set()
        async with session(self.plan.timeout_s, self._connections) as client:
            dialect = await self._heard(learn(client, self.url, self.model, self.api), SGLANG)
            with Bodies(self.model, self.plan, dialect) as bodies:
                await self._heard(self._first_bodies(bodies), None)
                before = await self._heard(scrape.counters(client, self.url), {})
                t = self._traffic = Traffic(
                    client, f"{self.url}{dialect.path}", bodies, self.plan, clock(),
                    self.seed, isinstance(self.load, OpenLoad),
                )  # fmt: skip
                t.on_end = self._ended
                if self.interrupted:  # before there was any traffic to stop
                    self._halt()
                lag, scraper = LoopLag(), scrape.Scraper(client, self.url, self.scrape_s)
                watches = (lag.watch(), scraper.watch(), self.progress.watch(t))
                watchers = [asyncio.create_task(w) for w in watches]
                try:
                    await self._drive(t)
                finally:
                    for w in watchers:
                        w.cancel()
                    await asyncio.gather(*watchers, return_exceptions=True)
            drained_s = clock()
            after = await self._heard(scrape.counters(client, self.url), {})
        record.write(t.records, self.out_dir)
        scraper.write(self.out_dir)
        write_json(self.out_dir / "recording.json", self._facts(t, lag, drained_s, before, after))

    async def _first_bodies(self, bodies: Bodies) -> None:
        """Make the bodies that are due first, before there is a clock for them to be late by."""
        if isinstance(self.load, OpenLoad):
            first = [(s, 0) for s in self.sessions.coming(openloop.AHEAD)]
        else:
            first = [
                (s, first_turn(self.plan, self.seed, lane, len(s.turns)))
                for lane, s in enumerate(self.sessions.coming(self.load))
            ]
        for s, k in first:
            bodies.ahead(s, k)
        await bodies.ready()

    async def _drive(self, t: Traffic) -> None:
        if isinstance(self.load, OpenLoad):
            parts = [openloop.arrive(t, self.sessions)]
        else:
            starts = lane_starts(self.load, self.plan, self.seed)
            parts = [play(t, i, after_s, self.sessions) for i, after_s in enumerate(starts)]
        lanes = [t.begin(part) for part in parts]
        await t.rest(self.plan.w1_s)
        # drain: nothing new is sent; what is in flight may end, for a limited time
        ended = asyncio.gather(*lanes, return_exceptions=True)
        await first_of(ended, t.stop, self.plan.drain_s)
        for task in lanes:
            task.cancel()
        await ended
        if t.fault:
            raise t.fault

    async def _heard(self, asked: Coroutine, otherwise: Any) -> Any:
        """What a server answers; ``otherwise`` when the replay is interrupted before it does."""
        if self._halted.is_set():
            asked.close()
            return otherwise
        task = asyncio.create_task(asked)
        if await first_of(task, self._halted):
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return otherwise

    def _ended(self, ended: record.Record) -> None:
        self.progress.ended(ended)
        t = self._traffic
        lanes = 0 if t.open else self.load
        if not ended.ok and len(t.records) >= max(GIVE_UP_AFTER, 2 * lanes):
            judged = [r for r in t.records if r.cancel_after_s is None]
            if len(judged) >= GIVE_UP_AFTER and not any(r.ok for r in judged):
                t.halt("failed", f"no request succeeded; the last error: {ended.reply.error}")

    def _shape(self) -> dict:
        """What the load was, for the records: loop, times, start mode, think times, lengths."""
        p = self.plan
        common = {k: getattr(p, k) for k in ("think_factor", "think_cap_s", "output")}
        common |= {"cancel_share": p.cancel_share}
        if isinstance(self.load, OpenLoad):
            fields = self.load.model_dump(mode="json", exclude_none=True)
            return {"loop": "open", **fields, "starts": len(self.sessions), **common}
        lanes = {"lanes": self.load, "start": p.start, "stagger_s": p.stagger_s}
        return {"loop": "closed", **lanes, **common}

    def _facts(self, t: Traffic, lag: LoopLag, drained_s: float, before: dict, after: dict) -> dict:
        offset_s = time.time() - clock()
        w0_s, w1_s = t.start_s + self.plan.w0_s, t.start_s + self.plan.w1_s
        started = dt.datetime.fromtimestamp(t.start_s + offset_s, dt.UTC)
        return {
            "schema": SCHEMA,
            **self.labels,
            "started_utc": started.isoformat(timespec="seconds"),
            "outcome": t.outcome,
            "reason": t.reason,
            "shape": self._shape(),
            "plan": self.plan.as_dict(),
            "clock": {"start_s": t.start_s, "wall_offset_s": offset_s},
            "window": {"w0_s": w0_s, "w1_s": w1_s, "drained_s": drained_s},
            "sessions": {"given": len(self.sessions), "used": self.sessions.taken},
            "counters": {"before": before, "after": after},
            "client": lag.summary(w0_s, w1_s) | t.client.facts(),
        }

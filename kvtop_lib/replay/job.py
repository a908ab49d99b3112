"""The traffic of one point inside an event loop: drive the load, drain, write what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtop_lib.params.shape import Load, OpenLoad
from kvtop_lib.replay import openloop, record, scrape
from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.crew import Crew
from kvtop_lib.replay.dialect import SGLANG, Api, learn
from kvtop_lib.replay.lanes import Place, first_places
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.processes import grow
from kvtop_lib.replay.progress import Progress
from kvtop_lib.replay.request import clock, session
from kvtop_lib.replay.traffic import Traffic, first_of
from kvtop_lib.replay.wire import Setup
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
    processes: int | str = "auto"
    interrupted: bool = field(default=False, init=False)
    _traffic: Traffic | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _halted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _count: Counter = field(default_factory=Counter, init=False)

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
                is_open, text = isinstance(self.load, OpenLoad), self._text()
                t = self._traffic = Traffic(
                    client, f"{self.url}{dialect.path}", bodies, self.plan, clock(), self.seed,
                    is_open,
                )  # fmt: skip
                setup = Setup(
                    t.url, self.model, dialect, self.plan, self.seed, is_open, self._connections,
                    text,
                )  # fmt: skip
                if self.interrupted:  # before there was any traffic to stop
                    self._halt()
                async with Crew(t, setup, self.sessions, self._ended) as crew:
                    scraper = scrape.Scraper(client, self.url, self.scrape_s, crew.others)
                    before = await self._play(t, crew, scraper)
                    drained_s = clock()
            after = await self._heard(scrape.counters(client, self.url), {})
            facts = crew.facts()
        records = crew.records()
        record.write(records, self.out_dir)
        scraper.write(self.out_dir)
        facts = self._facts(t, records, drained_s, before, after) | {"client": facts}
        write_json(self.out_dir / "recording.json", facts)

    async def _play(self, t: Traffic, crew: Crew, scraper: scrape.Scraper) -> dict:
        """Prepare, begin, watch and drain; the counters of before."""
        auto = self.processes == "auto"
        coming = openloop.arrivals(self.sessions) if t.open else iter(self._lanes())
        first = itertools.islice(coming, openloop.AHEAD) if t.open else coming
        await self._heard(crew.prepare(1 if auto else self.processes, first), None)
        before = await self._heard(scrape.counters(t.client, self.url), {})
        watches = [crew.lag.watch(), scraper.watch(), self.progress.watch(crew)]
        if auto:
            watches.append(grow(crew, self.url))
        watchers = [asyncio.create_task(w) for w in watches]
        try:
            crew.begin(clock())
            await self._drive(t, crew, coming)
        finally:
            for w in watchers:
                w.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        if t.fault:
            raise t.fault
        return before

    async def _drive(self, t: Traffic, crew: Crew, coming: Iterator[Place]) -> None:
        if t.open:
            times_s = self.sessions.times_s
            arriving = t.begin(openloop.arrive(t, coming, times_s, crew.deal))
            await first_of(arriving, t.stop)
        await t.rest(self.plan.w1_s)
        # drain: nothing new is sent; what is in flight may end, for a limited time
        crew.last()
        await t.drain()
        await crew.over()

    def _lanes(self) -> list[Place]:
        return first_places(self.load, self.plan, self.seed, self.sessions)

    def _text(self) -> Any:
        """Who writes the prompts of the sessions; one of a trace writes for all of them."""
        return next((getattr(s, "text", None) for s in self.sessions.coming(1)), None)

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

    def _ended(self, ended: record.Ended) -> None:
        self.progress.ended(ended)
        n = self._count
        n["all"] += 1
        if not ended.on_purpose:
            n["judged"] += 1
            n["ok"] += ended.ok
        lanes = self.load if isinstance(self.load, int) else 0
        enough = n["all"] >= max(GIVE_UP_AFTER, 2 * lanes) and n["judged"] >= GIVE_UP_AFTER
        if not ended.ok and enough and not n["ok"]:
            reason = f"no request succeeded; the last error: {ended.error}"
            self._traffic.halt("failed", reason)

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

    def _facts(
        self, t: Traffic, records: list[record.Record], drained_s: float, before: dict, after: dict
    ) -> dict:
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
            "sessions": {"given": len(self.sessions), "used": len({r.session for r in records})},
            "counters": {"before": before, "after": after},
        }

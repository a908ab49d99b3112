"""The traffic of one point inside an event loop: drive the load, drain, write what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvtop_lib.params.shape import Load, OpenLoad
from kvtop_lib.replay import record, scrape
from kvtop_lib.replay.dialect import Api, learn
from kvtop_lib.replay.health import LoopLag
from kvtop_lib.replay.lanes import Traffic, lane_starts, play
from kvtop_lib.replay.openloop import arrive
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

    @property
    def _connections(self) -> int:
        """Streams that may be open at once; of an open load a guess, it may need more."""
        lanes = isinstance(self.load, int)
        return self.load if lanes else min(len(self.sessions), OPEN_STREAMS)

    def interrupt(self) -> None:
        """Stop sending, cancel what is in flight, write what was recorded; from any thread."""
        self.interrupted = True
        if self._loop and self._traffic:
            with contextlib.suppress(RuntimeError):  # the loop has closed: all is written
                self._loop.call_soon_threadsafe(self._traffic.halt, "aborted", "interrupted")

    async def run(self) -> None:
        """Replay and write; returns when all files of the point are there."""
        self._loop = asyncio.get_running_loop()
        async with session(self.plan.timeout_s, self._connections) as client:
            dialect = await learn(client, self.url, self.model, self.api)
            before = await scrape.counters(client, self.url)
            t = self._traffic = Traffic(
                client, f"{self.url}{dialect.path}", self.model, self.plan, clock(),
                self.seed, isinstance(self.load, OpenLoad),
            )  # fmt: skip
            t.on_end = self._ended
            if self.interrupted:  # before there was any traffic to stop
                t.halt("aborted", "interrupted")
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
            after = await scrape.counters(client, self.url)
        record.write(t.records, self.out_dir)
        scraper.write(self.out_dir)
        write_json(self.out_dir / "recording.json", self._facts(t, lag, drained_s, before, after))

    async def _drive(self, t: Traffic) -> None:
        if isinstance(self.load, OpenLoad):
            parts = [arrive(t, self.sessions)]
        else:
            starts = lane_starts(self.load, self.plan, self.seed)
            parts = [play(t, i, after_s, self.sessions) for i, after_s in enumerate(starts)]
        lanes = [asyncio.create_task(part) for part in parts]
        await t.rest(self.plan.w1_s)
        # drain: nothing new is sent; what is in flight may end, for a limited time
        patience_s = self.plan.drain_s if t.outcome == "complete" else 0.0
        _, late = await asyncio.wait(lanes, timeout=patience_s)
        for task in late:
            task.cancel()
        for result in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

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

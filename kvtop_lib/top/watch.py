"""Polling one server: pages, machine and iterations become one reading per poll."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvtop_lib.replay.machine import Machine
from kvtop_lib.replay.pages import Page
from kvtop_lib.top import source
from kvtop_lib.top.rates import rates, ttft_p50
from kvtop_lib.top.tail import Tail

RATE_S = 5.0
"""Rates are over the last seconds, at least between two pages."""

TTFT_S = 30.0
"""First tokens are of requests of the last seconds."""

ITERATIONS = "iterations.jsonl"  # the stream of a server that a run of ours has started
RECORD = "KVTOP_RECORD"  # variable of a server that records its iterations: the stream's file


@dataclass
class Watch:
    """A server under observation; survives its absence and its restarts.

    Parameters
    ----------
    url : ``http://host:port``.
    iterations : stream of the server's iterations; looked up when it is on this machine.
    fetch, facts, machine, clock : replaced in tests.
    """

    url: str
    iterations: Path | None = None
    fetch: Callable[[str], Page] = source.metrics
    facts: Callable[[str], dict[str, Any]] = source.facts
    machine: Callable[[str], Machine] = Machine
    clock: Callable[[], float] = time.monotonic
    restarts: int = field(default=0, init=False)
    _pages: deque[tuple[float, Page]] = field(default_factory=deque, init=False)
    _known: dict[str, Any] | None = field(default=None, init=False)
    _machine: Machine | None = field(default=None, init=False)
    _tail: Tail | None = field(default=None, init=False)
    _lost: bool = field(default=False, init=False)  # it did not answer the last time

    def poll(self) -> dict[str, Any]:
        """One reading.

        Returns
        -------
        dict
            ``url, state`` (``ok`` or ``no server``), ``message`` (None, or a sentence),
            ``time_utc, restarts``; with a server also ``engine, version, model, span_s, running,
            queued, output_tok_s, prompt_tok_s, ttft_s`` (median), ``ttft_mean_s, accept_len,
            width_tokens, kv`` (``total_tokens, used_tokens, cached_tokens, used_share,
            draft_used_tokens``), ``recorder`` (``on`` or ``off``), ``iteration`` (`Tail.summary`,
            None without), ``machine``. What is not known is None.
        """
        base = {
            "url": self.url,
            "time_utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        try:
            page = self.fetch(self.url)
        except source.NoServer as e:
            self._lost = True
            return base | {"state": "no server", "message": str(e), "restarts": self.restarts}
        now_s = self.clock()
        back = bool(self._pages) and _went_back(self._pages[-1][1], page)
        if self._lost or back or self._known is None:
            self._look(back)
        self._pages.append((now_s, page))
        while len(self._pages) > 2 and now_s - self._pages[1][0] >= TTFT_S:
            self._pages.popleft()
        return base | self._reading(now_s, page)

    def _look(self, back: bool) -> None:
        """Learn what serves here; it may be another process than before."""
        known, machine = self.facts(self.url), self.machine(self.url)
        pids = [m.server[0].pid if m and m.server else None for m in (self._machine, machine)]
        if self._known is not None and (back or (None not in pids and pids[0] != pids[1])):
            self.restarts += 1
            self._pages.clear()
        self._known, self._machine, self._lost = known, machine, False
        file = self.iterations or machine.environment(RECORD) or machine.open_file(ITERATIONS)
        self._tail = Tail(file) if file else None

    def _reading(self, now_s: float, page: Page) -> dict[str, Any]:
        values, known = page.values, self._known or {}
        before_s, before = _earlier(self._pages, now_s - RATE_S)
        found = rates(before, page, now_s - before_s)
        recorded = self._tail is not None and self._tail.read()
        iteration = self._tail.summary(now_s, RATE_S) if recorded else None
        exact = {k: v for k in ("accept_len", "width_tokens") if (v := (iteration or {}).get(k))}
        width = found.pop("width_tokens") or values.get("width_tokens")
        return {
            "state": "ok",
            "message": None,
            "restarts": self.restarts,
            "engine": page.engine,
            "version": known.get("version"),
            "model": page.model or known.get("model"),
            "running": values.get("running"),
            "queued": values.get("queued"),
            **found,
            "ttft_s": ttft_p50(_earlier(self._pages, now_s - TTFT_S)[1], page),
            "width_tokens": width or known.get("width_tokens"),
            **exact,
            "kv": _kv(values, bool(known.get("draft_kv"))),
            "recorder": "on" if recorded else "off",
            "iteration": iteration,
            "machine": self._machine.sample() if self._machine else {},
        }


def _went_back(before: Page, now: Page) -> bool:
    """A counter that fell, or vanished: the server has started anew between two pages."""
    totals = [k for k in before.values if k.endswith("_total")]
    return any(now.values.get(k, 0.0) < before.values[k] for k in totals)


def _earlier(seen: deque[tuple[float, Page]], since_s: float) -> tuple[float, Page]:
    """The last page from before a time, else the first."""
    older = [(t, p) for t, p in seen if t <= since_s]
    return older[-1] if older else seen[0]


def _kv(values: dict[str, float], draft_kv: bool) -> dict[str, float | None]:
    """KV of the target, and of a draft layer, which holds the same tokens in SGLang."""
    used, free = values.get("kv_used_tokens"), values.get("kv_available_tokens")
    cached, total = values.get("kv_evictable_tokens"), values.get("kv_total_tokens")
    if total is None and None not in (used, free):
        total = used + free + (cached or 0.0)
    share = used / total if used is not None and total else values.get("token_usage")
    return {
        "total_tokens": total,
        "used_tokens": used,
        "cached_tokens": cached,
        "used_share": share,
        "draft_used_tokens": used if draft_kv else None,
    }

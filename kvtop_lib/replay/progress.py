"""One line that says how a point is getting on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
from collections import deque
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.record import Ended
from kvtop_lib.replay.request import clock


class Running(Protocol):
    """A point that runs: its plan and start, requests in flight and tokens read of them."""

    plan: Plan
    start_s: float
    in_flight: int
    tokens: int


class Progress:
    """Counts what has arrived; shows one line that is written over, or lines now and then.

    Parameters
    ----------
    label
        Start of the line.
    mode
        ``live`` in a terminal, ``notebook`` (a display that is updated), ``plain`` (a line every
        15 s, for logs), ``off``; ``auto`` takes what fits, or what ``KVTOP_PROGRESS`` says
        (`kvtop_lib.runner` sets it to plain: its log holds printed lines only).

    The rate is of the tokens that were read in the last ten seconds, TTFT is the median of the
    last 200 requests: signs of life, not results.
    """

    PLAIN_EVERY_S = 15.0
    RATE_S = 10.0

    def __init__(self, label: str, mode: str = "auto") -> None:
        self.label, self.failures, self._ended, self._ended_tokens = label, 0, 0, 0
        self._seen: deque[tuple[float, int]] = deque()
        self._ttft_s: deque[float] = deque(maxlen=200)
        self._mode = _mode() if mode == "auto" else mode

    def ended(self, request: Ended) -> None:
        """Note a request that has ended."""
        self._ended += 1
        self.failures += not request.ok
        self._ended_tokens += request.output_tokens
        if request.ttft_s is not None:
            self._ttft_s.append(request.ttft_s)

    def line(self, point: Running) -> str:
        """Elapsed, phase, in flight, tok/s, TTFT p50, failures, time left."""
        now, plan = clock(), point.plan
        since = now - point.start_s
        ttft = f"{statistics.median(self._ttft_s):.3f} s" if self._ttft_s else "-"
        left = max(0.0, plan.w1_s - since)
        return (
            f"{self.label}  {since:4.0f} s  {plan.phase(since):7}  in flight {point.in_flight:3}"
            f"  {self._rate(point, now):6.1f} tok/s  TTFT p50 {ttft}"
            f"  ended {self._ended:4}  failed {self.failures}  left {left:.0f} s + drain"
        )

    def _rate(self, point: Running, now: float) -> float:
        if not self._seen:
            self._seen.append((point.start_s, 0))
        self._seen.append((now, self._ended_tokens + point.tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.RATE_S:
            self._seen.popleft()
        (t0, n0), (t1, n1) = self._seen[0], self._seen[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    async def watch(self, point: Running) -> None:
        """Show the line until cancelled."""
        if self._mode == "live":
            with Live(console=Console(), transient=True, auto_refresh=False) as live:
                while True:
                    live.update(Text(self.line(point)), refresh=True)
                    await asyncio.sleep(0.5)
        if self._mode == "notebook":
            with _display() as show:
                while True:
                    show(self.line(point))
                    await asyncio.sleep(1.0)
        while self._mode == "plain":
            await asyncio.sleep(self.PLAIN_EVERY_S)
            print(self.line(point), flush=True)


def _mode() -> str:
    if said := os.environ.get("KVTOP_PROGRESS"):
        return said
    if sys.stdout.isatty():
        return "live"
    return "notebook" if _in_notebook() else "plain"


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


@contextlib.contextmanager
def _display():
    """A display of the running cell that is written over, and emptied at the end."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(line: str) -> None:
        handle.update({"text/plain": line}, raw=True)

    try:
        yield show
    finally:
        show("")

"""Was the client the bottleneck? Lag of its event loop, and no collections meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvtop_lib.replay.request import clock

PERIOD_S = 0.02


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector away: a full pass would stop the client for long.

    What exists is frozen as well, so that a pass that somebody asks for is short.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def short_turns(seconds: float = 0.0005) -> Iterator[None]:
    """Make threads give way sooner than after Python's 5 ms, so that the loop wakes in time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass
class LoopLag:
    """How late the event loop wakes, sampled every 20 ms: a bound on how late bytes are stamped."""

    samples: list[tuple[float, float]] = field(default_factory=list)  # (time, lag), seconds

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            due = clock() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            now = clock()
            self.samples.append((now, max(0.0, now - due)))

    def summary(self, w0_s: float, w1_s: float) -> dict[str, float | None]:
        """p50, p99 and maximum of the lag in the window, in seconds; None without a sample."""
        lag = [x for t, x in self.samples if w0_s <= t < w1_s]
        names = ("loop_lag_p50_s", "loop_lag_p99_s", "loop_lag_max_s")
        if not lag:
            return dict.fromkeys(names)
        values = np.percentile(lag, [50, 99, 100])
        return {k: float(v) for k, v in zip(names, values, strict=True)}

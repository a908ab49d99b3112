"""Was the client the bottleneck? Lag of its event loop, and no collections meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvtop_lib.replay.request import clock

PERIOD_S = 0.02
LOOK_S = 2.0
"""Time over which `LoopLag.recent_s` looks: a hundred samples, so that one of them is no p99."""


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

    def recent_s(self, now_s: float) -> float | None:
        """p99 over the last `LOOK_S`, in seconds; None before it has been watched for as long."""
        since_s = now_s - LOOK_S
        if not self.samples or self.samples[0][0] > since_s + 2 * PERIOD_S:
            return None
        latest = itertools.takewhile(lambda sample: sample[0] > since_s, reversed(self.samples))
        lag = [x for _, x in latest]
        return float(np.percentile(lag, 99)) if lag else None


def together(facts: Sequence[dict]) -> dict:
    """Health of several client processes as of one: the worst lag, and what they did in sum.

    Everything else is the first one's.
    """
    found = dict(facts[0])
    for name in found:
        known = [f[name] for f in facts if f.get(name) is not None]
        if known and name.startswith("loop_lag"):
            found[name] = max(known)
        elif known and name in ("connections_opened", "requests_resent", "raw_peak_bytes"):
            found[name] = sum(known)
    return found

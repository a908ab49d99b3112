"""When the sessions of an open loop start: the times depend on the load and the seed alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from kvtop_lib.params.shape import OpenLoad
from kvtop_lib.terms import KvtopError

MOST = 1_000_000
"""Times that are drawn at most: more than a trace has sessions, and a mistyped rate ends soon."""


def arrival_times(load: OpenLoad, seed: int, until_s: float) -> list[float]:
    """Start times of sessions in ``[0, until_s)``, in seconds from the start of the point.

    The first `MOST` of them.

    Parameters
    ----------
    load
        ``poisson``: independent exponential intervals of mean ``1 / rate``. ``gamma``: intervals
        of the same mean and shape ``burstiness``. ``constant``: intervals of exactly
        ``1 / rate``, the first at a seeded part of one. ``steps``: Poisson at the rate of each
        step for its time, the last rate stays.
    seed
        The same seed gives the same times, whatever ``until_s`` is.
    until_s
        End of sending.

    Raises
    ------
    KvtopError
        For trace arrivals, whose times are those of the sessions (`trace_times`).
    """
    rng = random.Random(f"kvtop-arrivals-{load.name}-{seed}")
    if load.arrivals == "trace":
        raise KvtopError("trace arrivals come from the trace's timestamps, not from a rate")
    if load.arrivals == "steps":
        times = _steps(load.steps, rng)
    elif load.arrivals == "constant":
        offset = rng.random()
        times = ((k + offset) / load.rate for k in itertools.count())
    else:
        shape = load.burstiness or 1.0
        times = itertools.accumulate(
            rng.gammavariate(shape, 1.0 / (load.rate * shape)) for _ in itertools.count()
        )
    inside = itertools.takewhile(lambda t: t < until_s, times)
    return list(itertools.islice(inside, MOST))


def _steps(steps: Sequence[tuple[float, float]], rng: random.Random) -> Iterator[float]:
    """A Poisson process whose rate is constant in each step.

    Unit-rate arrivals are drawn and mapped through the inverse of the cumulated rate, which is
    exact, also for an interval that spans steps.
    """
    work, start_s, done, k = 0.0, 0.0, 0.0, 0  # `done`: expected arrivals before step k
    while True:
        work += rng.expovariate(1.0)
        while k < len(steps) - 1 and work >= done + steps[k][0] * steps[k][1]:
            done += steps[k][0] * steps[k][1]
            start_s += steps[k][1]
            k += 1
        yield start_s + (work - done) / steps[k][0]


def trace_times(stamps_s: Sequence[float], load: OpenLoad, seed: int) -> list[float]:
    """Recorded start times, from the first one on, scaled; equal stamps spread when asked.

    Parameters
    ----------
    stamps_s
        Timestamps in rising order, in seconds.
    load
        ``time_scale`` multiplies intervals (0.5: twice as fast). ``jitter_s`` adds to every
        stamp that others share a seeded part of this recorded time, before the scale: a source
        that stamps by the clock's tick has bursts that were none.
    """
    rng = random.Random(f"kvtop-arrivals-{load.name}-{seed}")
    shared = {a for a, b in itertools.pairwise(stamps_s) if a == b}
    spread = [t + rng.random() * (load.jitter_s or 0.0) * (t in shared) for t in stamps_s]
    return [(t - stamps_s[0]) * (load.time_scale or 1.0) for t in sorted(spread)]


def session_stamp(session) -> float:
    """Recorded start of a session, in seconds.

    Raises
    ------
    KvtopError
        When the trace has no timestamps.
    """
    stamp = getattr(session, "at_s", None)
    if stamp is None:
        raise KvtopError(
            f"session {session.id!r} has no recorded start time; replay this trace at a rate "
            "(--rate) or with lanes (--concurrency)"
        )
    return stamp

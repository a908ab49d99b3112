"""How many processes the client is: one, and more only when the lag of its event loop demands it.

`kvtop_lib.metrics.health` refuses a point whose loop woke 10 ms late (p99; more where chunks come
seldom). Half of that is where another process begins, as long as there are cores for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from kvtop_lib.replay.machine import is_local
from kvtop_lib.replay.request import clock
from kvtop_lib.terms import KvtopError

LAG_S = 0.005
"""Lag p99 of a process (`LoopLag.recent_s`) above which one more is wanted."""

MOST = 64
"""Processes that may be asked for."""

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Quota and period of CPU time in microseconds, where there is a quota."""

LOOK_EVERY_S = 0.5
START_S = 5.0
"""The last process begins so long before the window: its start takes a core for a second or two."""

SETTLE_S = 5.0
"""After a process has come, another one is not asked for before the lag shows what it brought."""


class Crew(Protocol):
    """What `grow` needs of `kvtop_lib.replay.crew.Crew`."""

    most: int
    w0_s: float
    lag_s: Sequence[float | None]
    settled_s: float

    def __len__(self) -> int:
        """Number of processes."""

    async def add(self) -> None:
        """Add one; KvtopError or OSError when it cannot begin."""


def checked(processes: int | str) -> int | str:
    """What a caller asks for: ``auto``, or a number to begin the point with.

    Raises
    ------
    KvtopError
        When it is neither.
    """
    text = str(processes)
    if text == "auto":
        return text
    if text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MOST:
        return int(text)
    raise KvtopError(f"{text!r:.40} is no number of client processes; give auto or 1 to {MOST}")


def room(cores: int, local: bool) -> int:
    """Client processes that these cores leave room for, the first one among them.

    A server on this machine is left three cores of four; for one elsewhere all are the client's.
    """
    return max(1, cores // 4 if local else cores)


def wanted(lag_s: Iterable[float | None], running: int, most: int) -> int:
    """Processes that there should be.

    Parameters
    ----------
    lag_s
        `LoopLag.recent_s` of every process that runs; None where it is not known yet.
    running, most
        Processes there are, and the most there may be (`room`).
    """
    late = any(lag is not None and lag > LAG_S for lag in lag_s)
    return max(running, min(running + late, most))


def cores() -> int:
    """Cores that this process may run on, and not more than its container's quota gives time of."""
    may = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, CPU_MAX.read_text().split())
    except (OSError, ValueError):  # no such file, or "max"
        return may
    return max(1, min(may, quota // period))


async def grow(crew: Crew, url: str) -> None:
    """Add processes while lag demands it, there is room for them, and the window is far."""
    local = await asyncio.to_thread(is_local, url)
    most = min(room(cores(), local), crew.most)
    while len(crew) < most and clock() < crew.w0_s - START_S:
        await asyncio.sleep(LOOK_EVERY_S)
        now = clock()
        settled = crew.settled_s + SETTLE_S <= now < crew.w0_s - START_S
        if settled and wanted(crew.lag_s, len(crew), most) > len(crew):
            try:
                await crew.add()
            except (KvtopError, OSError) as e:
                print(f"the client stays at {len(crew)} of {most} processes: {e}", file=sys.stderr)
                return

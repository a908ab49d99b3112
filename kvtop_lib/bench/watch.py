"""One client on the null server: CPU while all streams run, CPU of its whole life, memory.

CPU while streaming is read from the CPU clocks of the client's processes, at two moments between
which every stream was open; the null server tells how many chunks it sent between them. That
leaves out start-up, but also what a client does only afterwards. CPU of the whole life leaves
nothing out; two lives of different length differ by what the additional chunks cost.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from kvtop_lib.bench import children
from kvtop_lib.bench.launch import Null, cores

LOOK_S, MEMORY_EVERY = 0.5, 4
SETTLED_CHUNKS = 5
"""Chunks per stream before the steady part begins."""


@dataclass
class Life:
    """What was measured from outside while a client ran.

    Attributes
    ----------
    cpu_s
        Of its whole life, all its processes.
    stream_cpu_s, stream_chunks, stream_wall_s
        Between the two moments; None when there was no time at which all streams ran.
    memory_bytes
        Most proportional set size of all its processes together.
    server
        The null server's counts, and its share of a core between the two moments.
    """

    returncode: int
    wall_s: float
    cpu_s: float
    stream_cpu_s: float | None = None
    stream_chunks: int | None = None
    stream_wall_s: float | None = None
    memory_bytes: int | None = None
    server: dict = field(default_factory=dict)

    def as_dict(self) -> dict:
        """All fields, for the records."""
        return asdict(self)


def cpu_clock_s(pid: int) -> float:
    """CPU time of a process with all its threads, to the nanosecond; 0 when it has gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock id of a process (man clock_getres)
    except OSError:
        return 0.0


def proportional_bytes(pid: int) -> int:
    """Proportional set size of a process; 0 when it has gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def watch(
    null: Null, command: list[str], streams: int, folder: Path, limit_s: float, env: dict
) -> Life:
    """Run a client until it ends, or until ``limit_s`` seconds; its output goes to ``log.txt``.

    The returncode is -1 when it was ended for taking too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    null.ask("reset")
    wrapped = [sys.executable, "-I", children.__file__, str(folder / "life.json"), *command]
    looks, memory, since_s, turn = [], 0, time.monotonic(), 0
    with open(folder / "log.txt", "w") as log:
        client = subprocess.Popen(
            wrapped,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=env,
            start_new_session=True,
            preexec_fn=_settle,
        )
        while client.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(LOOK_S)
            pids, stats = _tree(client.pid), null.ask("stats")
            if stats["active"] == streams and stats["sent_chunks"] >= SETTLED_CHUNKS * streams:
                looks.append((sum(map(cpu_clock_s, pids)), stats))
            if turn % MEMORY_EVERY == 0:
                memory = max(memory, sum(map(proportional_bytes, pids)))
            turn += 1
            if (over_s := time.monotonic() - since_s - limit_s) > 0:
                _end(pids, signal.SIGTERM if over_s < 10 else signal.SIGKILL)
    late = time.monotonic() - since_s > limit_s
    wall_s, stats = time.monotonic() - since_s, null.ask("stats")
    told = folder / "life.json"
    whole = json.loads(told.read_text()) if told.exists() else {"cpu_s": 0.0, "returncode": -1}
    life = Life(-1 if late else whole["returncode"], wall_s, whole["cpu_s"], server=stats)
    life.memory_bytes = memory or None
    if len(looks) > 1:
        (cpu0, first), (cpu1, last) = looks[0], looks[-1]
        life.stream_wall_s = last["clock_s"] - first["clock_s"]
        life.stream_chunks = last["sent_chunks"] - first["sent_chunks"]
        life.stream_cpu_s = cpu1 - cpu0
        share = (last["cpu_s"] - first["cpu_s"]) / life.stream_wall_s
        life.server = stats | {"core_share": share}
    return life


def _settle() -> None:
    """In the client's process before it starts: its cores, and as many files as are allowed."""
    os.sched_setaffinity(0, cores()[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _end(pids: list[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def _tree(pid: int) -> list[int]:
    """A wrapper's descendants, without itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p.pid for p in psutil.Process(pid).children(recursive=True)]
    return []

"""Who works on a run: one process at a time, and none longer than the caller that asked for it.

A make that is killed (SIGKILL) cannot tell those below it: they would go on alone, and hold the
run against the next call. Linux only (pidfd).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kvtop_lib.interrupts import interrupted_by
from kvtop_lib.terms import KvtopError

CALLER = "KVTOP_CALLER"
"""Variable for those below: the process whose end ends what serves all of them."""

ENDING_S = 60.0  # a step whose caller was killed has so long to end


def _opened(pid: int) -> int | None:
    """A descriptor of a process, readable once it has ended; None when it is not there."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def ended(pid: int) -> bool:
    """Whether a process has ended, also when nobody has waited for it yet."""
    if (process := _opened(pid)) is None:
        return True
    try:
        return bool(select.select([process], [], [], 0)[0])
    finally:
        os.close(process)


@contextmanager
def bound_to(pid: int | None) -> Iterator[None]:
    """A block that is interrupted (KeyboardInterrupt, as by Ctrl-C) once process `pid` has ended.

    So it is by SIGTERM, which is how a thread that waits for the end says it to the main one,
    whatever that is waiting for. None watches nothing. To be entered in the main thread. Those
    below learn of it by the variable `CALLER`.
    """
    if pid is None:
        yield
        return
    os.environ.setdefault(CALLER, str(pid))
    if (process := _opened(pid)) is None:
        raise KeyboardInterrupt
    over, leave = os.pipe()

    def watch() -> None:
        if over not in select.select([process, over], [], [])[0]:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    watcher = threading.Thread(target=watch, daemon=True)
    with interrupted_by(signal.SIGTERM):
        watcher.start()
        try:
            yield
        finally:
            os.close(leave)  # readable at the other end
            watcher.join()
            os.close(process)
            os.close(over)


@contextmanager
def alone(run: Path, caller: int | None = None) -> Iterator[None]:
    """Hold a run for one step; a holder that is killed lets go.

    Two servers at once would disturb each other. A holder whose own `caller` has ended is ending
    too, and is waited for.

    Parameters
    ----------
    caller
        The process whose end ends this one (`bound_to`), None without one.

    Raises
    ------
    KvtopError
        When another process holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("a+") as file:
        deadline, told = time.monotonic() + ENDING_S, False
        while not _locked(file):
            file.seek(0)
            holder, *its_caller = file.read().split() or ["unknown"]
            ending = its_caller and ended(int(its_caller[0]))
            if not ending or time.monotonic() > deadline:
                other = f"process {holder} works on run {run.name!r}"
                raise KvtopError(f"{other}; wait until it ends, or end it")
            if not told:
                print(f"process {holder} of a call that was killed is ending ...", flush=True)
            told = True
            time.sleep(0.2)
        file.truncate(0)
        print(os.getpid(), caller or "", file=file, flush=True)
        yield


def _locked(file: TextIO) -> bool:
    """Take the lock, if nobody holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Who works on a run: one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtop_lib.terms import KvtopError


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """Hold a run for one step; a holder that is killed lets go.

    A killed make leaves its step running, and two servers at once would disturb each other.

    Raises
    ------
    KvtopError
        When another process holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = f"process {file.read().strip() or 'unknown'} works on run {run.name!r}"
            raise KvtopError(f"{other}; wait until it ends, or end it") from None
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield

"""The null server in a process of its own, and what it says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from kvtop_lib.engine.client import call
from kvtop_lib.terms import KvtopError


def cores() -> tuple[int, set[int]]:
    """The core of the null server and the cores of its clients; one core serves both alone."""
    first, *others = sorted(os.sched_getaffinity(0))
    return first, set(others) or {first}


@dataclass
class Null:
    """Context manager of a null server on this host.

    Parameters
    ----------
    together
        All streams send at the same moments.
    period_s
        Seconds between two chunks of a stream.
    """

    together: bool = False
    period_s: float = 0.1
    url: str = ""

    def __enter__(self) -> Null:
        core, _ = cores()
        command = [sys.executable, "-m", "kvtop_lib.bench.null_server", "--core", str(core)]
        command += ["--period", str(self.period_s), *["--together"] * self.together]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        if not line:
            raise KvtopError("the null server did not start; its message is above")
        self.url = f"http://127.0.0.1:{json.loads(line)['port']}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, what: str) -> dict | list:
        """``stats``, ``log`` or ``reset``; `kvtop_lib.bench.null_server` says what is in them."""
        return call(f"{self.url}/null/{what}", timeout_s=60)

"""Run a command and add up the CPU time of all it started, also of what it left behind.

``python children.py OUT.json COMMAND...`` adopts orphans (Linux: child subreaper) and waits for
every one of them, so that a client of many processes cannot hide what it costs. Only the
standard library is imported: this process is part of nobody's cost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 120.0
"""Orphans that live longer than their parent by this are ended."""


def run(command: list[str], out: str) -> int:
    """Run it, write ``cpu_s``, ``max_rss_bytes`` (of the largest process) and ``returncode``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    cpu_s, rss, code, deadline = 0.0, 0, None, None
    while True:
        flags = 0 if code is None else os.WNOHANG
        try:
            pid, status, used = os.wait4(-1, flags)
        except ChildProcessError:
            break
        if pid == 0:
            if time.monotonic() > deadline:
                for orphan in _children():
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.05)
            continue
        cpu_s += used.ru_utime + used.ru_stime
        rss = max(rss, used.ru_maxrss * 1024)
        if pid == child.pid:
            code, deadline = os.waitstatus_to_exitcode(status), time.monotonic() + GRACE_S
    child.returncode = code
    with open(out, "w") as file:
        json.dump({"cpu_s": cpu_s, "max_rss_bytes": rss, "returncode": code}, file)
    return code


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    code = run(sys.argv[2:], sys.argv[1])
    raise SystemExit(code if code >= 0 else 128 - code)

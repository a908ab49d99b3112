"""A wrapper process that a server cannot outlive: ``python supervise.py --parent PID -- argv...``.

The server runs in a process group of its own below this wrapper. The wrapper ends the whole group,
and every process that the server ever started, when

- the parent named by ``--parent`` dies in whatever way, SIGKILL included (seen through a pidfd),
- the wrapper gets SIGTERM, SIGINT or SIGHUP,
- the server itself ends while processes that it started live on.

Ending means SIGTERM, ``GRACE_S`` seconds, then SIGKILL. If the wrapper itself is killed, the kernel
kills the server (parent-death signal). Linux only; it imports nothing outside the standard library.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

GRACE_S = 5.0  # between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def in_child(wrapper: int) -> None:
    """In the forked server: an own group, dead as soon as the wrapper is dead."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != wrapper:  # the wrapper died before the signal was armed
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, zombies left out (orphans come here: child subreaper)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                    state, parent = f.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            if state != "Z":
                children.setdefault(int(parent), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def end_all(child: subprocess.Popen, grace_s: float) -> None:
    """End everything below this process: SIGTERM, `grace_s` seconds, SIGKILL until none is left."""
    deadline = time.monotonic() + grace_s
    _signal_all(descendants(os.getpid()), signal.SIGTERM)
    while True:
        child.poll()  # keeps the server's own exit status before others are reaped
        if child.returncode is not None:
            _reap()
        left = descendants(os.getpid())
        if not left:
            return
        if time.monotonic() > deadline:
            _signal_all(left, signal.SIGKILL)
        time.sleep(0.05)


def watch(start: Callable[[], Any], parent_pid: int, grace_s: float) -> int:
    """Start a server below this process and end it in time.

    Parameters
    ----------
    start : starts it; what it returns has ``pid``, ``poll``, ``wait`` and ``returncode`` as a
        ``subprocess.Popen``.
    parent_pid : process whose end ends the server.
    grace_s : seconds between SIGTERM and SIGKILL.

    Returns
    -------
    int
        The server's exit code, 128 + signal when it was killed; 1 when the parent is dead already,
        and nothing was started.
    """
    try:
        parent = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        return 1
    wake_out, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_in)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = start()
    done = os.pidfd_open(child.pid)
    select.select([parent, done, wake_out], [], [])
    end_all(child, grace_s)
    code = child.wait()
    return code if code >= 0 else 128 - code


def main(argv: list[str] | None = None) -> int:
    """Run the command below a wrapper; returns its exit code (128 + signal when it was killed)."""
    parser = argparse.ArgumentParser(prog="supervise", description=__doc__.splitlines()[0])
    parser.add_argument("--parent", type=int, default=os.getppid(), help="pid to watch")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="seconds before SIGKILL")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("a command is missing after --")
    me = os.getpid()
    try:
        return watch(
            lambda: subprocess.Popen(command, preexec_fn=lambda: in_child(me)),
            args.parent,
            args.grace,
        )
    except OSError as e:
        print(f"supervise: cannot start {command[0]}: {e.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())

"""Signals that end a process in order, as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[list[int]]:
    """A block in which these signals raise KeyboardInterrupt; the list of those that came.

    To be entered in the main thread, which is where Python handles signals.
    """
    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

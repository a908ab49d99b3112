"""A further client process, as the first one sees it: begun, told what to play, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Protocol

from kvtop_lib.replay.lanes import Place
from kvtop_lib.replay.record import Ended, Record
from kvtop_lib.replay.traffic import first_of
from kvtop_lib.replay.wire import Line, Setup
from kvtop_lib.trace.model import Session

MODULE = "kvtop_lib.replay.worker"
END_S = 5.0
"""Longest wait for a process that has been let go, before it is killed."""

READY_S = 60.0
"""Longest wait for a process that the point begins with."""

TELL_S = 10.0
"""Longest wait for what a process has to tell after the drain."""

STOP_S = 2.0
"""The same after a stop, when it has nothing else to do."""


class Chief(Protocol):
    """Whom a process tells (`kvtop_lib.replay.crew.Crew`)."""

    def feed(self, hand: Remote) -> None:
        """It wants a session."""

    def deal(self, place: Place) -> None:
        """A lane of it is to go on elsewhere."""

    def note(self, ended: Ended) -> None:
        """A request of it has ended."""

    def fail(self, fault: BaseException) -> None:
        """Something went wrong in it."""

    def lose(self, reason: str) -> None:
        """It has ended by itself."""


class Remote:
    """One process; `lanes`, `quota` and `stocked` are those of its `Share`, as told so far.

    It is a fresh interpreter, since a fork would copy locks that threads hold; it finds modules
    where this one does; and it stands in a session of its own, where Ctrl-C does not reach it:
    this process stops it.

    Attributes
    ----------
    needed : whether the point fails when it does; before it plays anything the point need not.
    lost : why it has ended by itself, when it was not needed.
    """

    def __init__(self, chief: Chief, needed: bool = True) -> None:
        self._chief, self._ends = chief, False  # or has ended
        self.needed, self.lost = needed, ""
        self.lanes = self.quota = self.stocked = self.in_flight = self.tokens = 0
        self.lag_s: float | None = None
        self.ready, self.over = asyncio.Event(), asyncio.Event()
        self.facts: dict | None = None
        self._ended: list[bytes] = []
        self._said = tempfile.TemporaryFile()  # on its standard error
        self._line: Line | None = None
        mine, its = socket.socketpair()
        self._mine = mine
        paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def meet(self, setup: Setup) -> None:
        """Tell it what the point is, before anything else."""
        self._line = await Line.over(self._mine)
        self.send("setup", setup)
        self._line.text = setup.text

    def send(self, *message: object) -> None:
        """Tell it something, if it is still there."""
        if self._line and not self._ends:
            self._line.send(*message)

    def play(self, place: Place) -> None:
        """As `Share.play`."""
        self.lanes += 1
        self.send("play", place)

    def put(self, session: Session) -> None:
        """As `Share.put`."""
        self.stocked += 1
        self.send("put", session)

    def allow(self, lanes: int) -> None:
        """As `Share.allow`."""
        self.quota = lanes
        self.send("allow", lanes)

    async def listen(self) -> None:
        """Take what it tells, until it ends."""
        does = {"ready": self.ready.set, "took": self._took, "moved": self._moved,
                "ended": self._has_ended, "pulse": self._pulse, "fault": self._fault,
                "over": self._over}  # fmt: skip
        with contextlib.suppress(EOFError, OSError):
            while True:
                what, *more = await self._line.receive()
                does[what](*more)
        told, self._ends = self._ends or self.over.is_set(), True
        if not told:
            how = await self._how()
            if self.needed:
                self._chief.lose(f"{how} and what it had in flight is not recorded; measure again")
            self.lost = self.lost or how
            self.ready.set()
            self.over.set()

    def _fault(self, fault: BaseException) -> None:
        if self.needed:
            return self._chief.fail(fault)
        self.lost = str(fault)
        return self.ready.set()

    def _took(self) -> None:
        self.stocked -= 1
        self._chief.feed(self)

    def _moved(self, place: Place) -> None:
        self.lanes -= 1
        self._chief.deal(place)

    def _has_ended(self, ended: Ended, record: bytes) -> None:
        self._ended.append(record)
        self._chief.note(ended)

    def _pulse(self, in_flight: int, tokens: int, lag_s: float | None) -> None:
        self.in_flight, self.tokens, self.lag_s = in_flight, tokens, lag_s

    def _over(self, facts: dict) -> None:
        self.facts, self.in_flight, self.tokens = facts, 0, 0
        self.over.set()

    def records(self) -> list[Record]:
        """Of the requests that have ended."""
        return [pickle.loads(data) for data in self._ended]

    async def _how(self) -> str:
        code = await self._wait()
        self._said.seek(0)
        last = self._said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return f"client process {self.pid} has ended by itself ({how}{last and ': '}{last})"

    async def close(self) -> None:
        """Let it go; it ends by that, or is killed."""
        self._ends = True
        if self._line:
            await self._line.close()
        self._mine.close()
        await self._wait()
        self._said.close()

    async def _wait(self) -> int:
        try:
            return await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)


async def told(remotes: Iterable[Remote], stop: asyncio.Event, seconds: float) -> bool:
    """Wait for all that these have to tell, so long and a little, and not long after a stop."""
    over = asyncio.gather(*(r.over.wait() for r in remotes))
    if not await first_of(over, stop, seconds + TELL_S) and stop.is_set():
        await asyncio.wait({over}, timeout=STOP_S)
    if not over.done():
        over.cancel()
        return False
    return True

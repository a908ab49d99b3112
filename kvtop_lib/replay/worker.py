"""A further client process: ``python -m kvtop_lib.replay.worker FD``, begun by `replay.remote`.

It plays what it is told over the socket FD (`kvtop_lib.replay.wire`) on a loop, with connections
and a thread for bodies of its own, tells of every request as it ends, and ends with the process
that began it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from functools import partial

from kvtop_lib.replay import loop
from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.health import LoopLag, no_collection, short_turns
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.request import Client, clock, session
from kvtop_lib.replay.share import Share
from kvtop_lib.replay.traffic import Traffic, first_of
from kvtop_lib.replay.wire import Line, Setup, portable

PULSE_S = 0.5


class Worker:
    """Traffic of this process, as the first one wants it."""

    def __init__(self, line: Line, setup: Setup, client: Client, bodies: Bodies) -> None:
        self._line = line
        self._traffic = Traffic(
            client, setup.url, bodies, setup.plan, clock(), setup.seed, setup.open, self._ended
        )
        took, moved = partial(line.send, "took"), partial(line.send, "moved")
        self._share = Share(self._traffic, took, moved)
        self._begun, self._last = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Play until all has ended and is told, and the first process lets this one go."""
        t, lag = self._traffic, LoopLag()
        listening = t.guard(self._listen())
        for work in (lag.watch(), self._pulse(lag)):
            t.guard(work)
        await first_of(self._begun.wait(), t.stop)
        await t.rest(t.plan.w1_s)
        await first_of(self._last.wait(), t.stop)
        await t.drain()
        if t.fault:
            self._line.send("fault", portable(t.fault))
        self._line.send("over", lag.summary(t.w0_s, t.end_s) | t.client.facts())
        await asyncio.wait({listening})

    async def _listen(self) -> None:
        share = self._share
        does = {"play": share.play, "put": share.put, "allow": share.allow}
        does |= {"prepare": self._prepare, "begin": self._begin, "last": self._last.set}
        does["stop"] = partial(self._traffic.halt, "aborted", "stopped by the first process")
        while True:
            try:
                what, *more = await self._line.receive()
            except (EOFError, OSError):
                os._exit(1)  # nobody is left to play for, or to tell
            does[what](*more)

    def _prepare(self) -> None:
        async def prepared() -> None:
            await self._traffic.bodies.ready()
            self._line.send("ready")

        self._traffic.guard(prepared())

    def _begin(self, start_s: float) -> None:
        self._share.begin(start_s)
        self._begun.set()

    def _ended(self, record: Record) -> None:
        self._line.send("ended", record.ended, pickle.dumps(record, pickle.HIGHEST_PROTOCOL))

    async def _pulse(self, lag: LoopLag) -> None:
        t = self._traffic
        while True:
            await asyncio.sleep(PULSE_S)
            self._line.send("pulse", t.in_flight, t.client.backlog.tokens, lag.recent_s(clock()))


async def _serve(fd: int) -> None:
    line = await Line.over(socket.socket(fileno=fd))
    _, setup = await line.receive()
    line.text = setup.text
    try:
        async with session(setup.plan.timeout_s, setup.connections) as client:
            client.dialect = setup.dialect
            with Bodies(setup.model, setup.plan, setup.dialect) as bodies:
                await Worker(line, setup, client, bodies).run()
    except Exception as e:  # noqa: BLE001 - raised again by the first process
        line.send("fault", portable(e))
    finally:
        await line.close()


def main() -> None:
    """Serve the process at the other end of the socket.

    Signals are for the first process, which tells this one to stop and hears what it has seen.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with no_collection(), short_turns():
        loop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()

"""One line that says how a point is getting on."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvtop_lib.replay.lanes import Traffic
from kvtop_lib.replay.record import Record
from kvtop_lib.replay.request import clock


class Progress:
    """Counts ended requests; a live line in a terminal, a plain line now and then elsewhere.

    The rate shown is of the requests that ended in the last ten seconds: a sign of life, not a
    result.
    """

    PLAIN_EVERY_S = 15.0
    RATE_S = 10.0

    def __init__(self, label: str, mode: str = "auto") -> None:
        self.label, self.failures = label, 0
        self._ended: list[tuple[float, int]] = []
        live = mode == "live" or (mode == "auto" and sys.stdout.isatty())
        self._mode = "live" if live else "off" if mode == "off" else "plain"

    def ended(self, record: Record) -> None:
        """Note a request that has ended."""
        self.failures += not record.ok
        self._ended.append((clock(), record.reply.output_tokens))

    def line(self, traffic: Traffic) -> str:
        """Elapsed, phase, in flight, tok/s, failures, time left."""
        now, plan = clock(), traffic.plan
        since = now - traffic.start_s
        self._ended = [(t, n) for t, n in self._ended if t >= now - self.RATE_S]
        rate = sum(n for _, n in self._ended) / max(1.0, min(self.RATE_S, since))
        left = max(0.0, plan.w1_s - since)
        return (
            f"{self.label}  {since:4.0f} s  {plan.phase(since):7}  in flight {traffic.in_flight:3}"
            f"  {rate:6.1f} tok/s  ended {len(traffic.records):4}  failed {self.failures}"
            f"  left {left:.0f} s + drain"
        )

    async def watch(self, traffic: Traffic) -> None:
        """Show the line until cancelled."""
        if self._mode == "off":
            return
        if self._mode == "live":
            with Live(console=Console(), transient=True, auto_refresh=False) as live:
                while True:
                    live.update(Text(self.line(traffic)), refresh=True)
                    await asyncio.sleep(0.5)
        while True:
            await asyncio.sleep(self.PLAIN_EVERY_S)
            print(self.line(traffic), flush=True)

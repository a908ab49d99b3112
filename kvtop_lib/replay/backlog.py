"""Answers in flight, read in slices so short that no stamp waits for long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kvtop_lib.replay.connection import clock
from kvtop_lib.replay.http1 import BadAnswer
from kvtop_lib.replay.reply import Raw

RAW_LIMIT = 64 * 2**20
"""Most bytes of unread answers; from half of it on they are read in longer slices."""

SLICE_S = 0.0001
WORTH_BUFFERS, WORTH_BYTES = 8, 65536  # less is left for later: starting a read costs, too


@dataclass(eq=False)
class Backlog:
    """Answers in flight, by identity, and the most bytes that waited to be read."""

    active: dict[int, Raw] = field(default_factory=dict)
    peak_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read so far of the answers in flight."""
        return sum(r.reader.reply.output_tokens for r in self.active.values() if r.reader)

    async def watch(self, period_s: float) -> None:
        """Read what has arrived, until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            await self.read()

    async def read(self) -> None:
        """Read once through all answers in flight that have enough to read."""
        raws = [r for r in self.active.values() if r.framing is not None]
        sizes = [sum(map(len, r.buffers)) for r in raws]
        self.peak_bytes = max(self.peak_bytes, sum(sizes))
        full, since_s = sum(sizes) > RAW_LIMIT // 2, clock()
        slice_s = 20 * SLICE_S if full else SLICE_S
        for raw, size in zip(raws, sizes, strict=True):
            if not full and len(raw.buffers) < WORTH_BUFFERS and size < WORTH_BYTES:
                continue
            while id(raw) in self.active and _some(raw):
                if clock() - since_s > slice_s:
                    await asyncio.sleep(0)
                    since_s = clock()
            if clock() - since_s > slice_s:
                await asyncio.sleep(0)
                since_s = clock()


def _some(raw: Raw) -> int:
    try:
        return raw.digest(32) if raw.framing is not None else 0
    except BadAnswer:
        return 0  # the end of the exchange tells of it

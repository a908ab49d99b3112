"""KVTop's replay client on the null server: the sending, reading and parsing of a measured point.

``python -m kvtop_lib.bench.ours --url URL --streams N --chunks K --out FILE``. Parsing is part of
what is measured, whether it happens while bytes arrive or afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import time

from kvtop_lib.bench.driver import Seen, payload, run_driver
from kvtop_lib.replay.loop import run
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import send, session


def play_streams(url: str, streams: int, chunks: int) -> tuple[list[Seen], dict[str, float]]:
    """Open all streams at once, read and parse them to their ends; returns as the floor does."""
    gc.collect()
    gc.freeze()  # as in a measured point
    return run(_play(url, streams, chunks))


async def _play(url: str, streams: int, chunks: int) -> tuple[list[Seen], dict[str, float]]:
    target, body = f"{url}/v1/chat/completions", payload(chunks)

    async def one(client) -> tuple[Raw, object]:
        raw = Raw()
        await send(client, target, body, raw)
        return raw, parse(raw)

    async with session(timeout_s=60.0, connections=streams) as client:
        cpu_s, since_s = time.process_time(), time.monotonic()
        ended = await asyncio.gather(*(one(client) for _ in range(streams)))
        cost = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.monotonic() - since_s}
        cost["raw_peak_bytes"] = client.facts()["raw_peak_bytes"]
    return [_seen(reply) for _, reply in ended], cost


def _seen(reply) -> Seen:
    number = int(reply.response_id.removeprefix("null-")) if reply.response_id else None
    status = reply.status if reply.status == "ok" else f"{reply.status}: {reply.error}"
    return Seen(number, status, list(reply.times))


if __name__ == "__main__":
    run_driver("kvtop_lib.bench.ours", __doc__, play_streams)

"""The server's own gauges and counters (``/metrics``) and the machine's, once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from kvtop_lib.replay import machine, pages
from kvtop_lib.replay.pages import COUNTERS, read
from kvtop_lib.replay.request import Client, clock

COLUMNS = (*pages.COLUMNS, *machine.COLUMNS)
SCHEMA = pa.schema([("t_s", pa.float64()), *((c, pa.float64()) for c in COLUMNS)])
_SETTLE_S = 0.1


async def page(client: Client, url: str, timeout_s: float = 5.0) -> bytes | None:
    """One page of ``/metrics``; None when the server has none or does not answer in time."""
    try:
        status, text = await client.get(f"{url}/metrics", timeout_s)
    except OSError:
        return None
    return text if status == 200 else None


async def counters(client: Client, url: str, settle_s: float = 5.0) -> dict:
    """Counters of a quiet server: read until two pages agree (requests are booked at their end)."""
    deadline, before = clock() + settle_s, None
    while (text := await page(client, url, timeout_s=30.0)) is not None:
        now = {k: v for k, v in _read(text).items() if k in COUNTERS.values()}
        if now == before or clock() > deadline:
            return now
        before = now
        await asyncio.sleep(_SETTLE_S)
    return {}


def _read(text: bytes) -> dict[str, float]:
    try:
        return read(text)
    except ValueError:
        return {}  # one malformed page is one unknown sample


class Scraper:
    """Pages of ``/metrics``, kept as bytes while traffic runs and read afterwards.

    Beside each page goes a sample of the machine, taken on a thread of its own: a GPU may take
    milliseconds to answer. ``clients`` are the client's processes beside this one.
    """

    def __init__(
        self, client: Client, url: str, period_s: float, clients: Sequence[psutil.Process] = ()
    ) -> None:
        self._client, self._url, self._period_s, self._clients = client, url, period_s, clients
        self._pages: list[tuple[float, bytes, dict[str, float]]] = []
        self._machine: machine.Machine | None = None

    @property
    def samples(self) -> int:
        """Samples taken so far."""
        return len(self._pages)

    async def watch(self) -> None:
        """Sample once per period until cancelled; a server without the page is not asked again."""
        self._machine = await asyncio.to_thread(machine.Machine, self._url, self._clients)
        has_page = True
        while True:
            text = await page(self._client, self._url) if has_page else None
            t_s = clock()
            has_page = text is not None or any(kept for _, kept, _ in self._pages)
            sample = await asyncio.to_thread(self._machine.sample, pss=not self._pages)
            self._pages.append((t_s, pages.keep(text or b""), sample))
            await asyncio.sleep(self._period_s)

    def write(self, folder: Path) -> None:
        """Write ``scrapes.parquet``: columns `SCHEMA`, absent values null.

        One row per sample; the last one, of after the traffic, is of the machine alone.
        """
        rows = [{"t_s": t} | _read(text) | sample for t, text, sample in self._pages]
        if self._machine is not None:
            rows.append({"t_s": clock()} | self._machine.sample(pss=True))
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "scrapes.parquet")

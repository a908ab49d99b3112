"""The server's own gauges and counters (``/metrics``), once a second."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client.parser import text_string_to_metric_families

from kvtop_lib.replay.request import Client, clock

GAUGES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:kv_used_tokens": "kv_used_tokens",
    "sglang:kv_available_tokens": "kv_available_tokens",
    "sglang:kv_evictable_tokens": "kv_evictable_tokens",
    "sglang:token_usage": "token_usage",
    "sglang:gen_throughput": "gen_tok_s",
}
COUNTERS = {
    "sglang:generation_tokens_total": "generation_tokens_total",
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:cached_tokens_total": "cached_tokens_total",
    "sglang:realtime_tokens_total": "realtime_tokens_total",
    "sglang:spec_verify_calls_total": "spec_verify_calls_total",
    "sglang:e2e_request_latency_seconds_sum": "request_seconds_total",
    "sglang:e2e_request_latency_seconds_count": "requests_total",
}
COLUMNS = (*GAUGES.values(), *COUNTERS.values())
SCHEMA = pa.schema([("t_s", pa.float64()), *((c, pa.float64()) for c in COLUMNS)])
_WANTED = tuple(name.encode() for name in (*GAUGES, *COUNTERS))
_SETTLE_S = 0.1


def read(page: bytes) -> dict[str, float]:
    """Values of one page of ``/metrics`` by column name.

    Counters are summed over their labels; of a gauge the largest is taken (ranks report the same
    quantity). ``realtime_tokens_total`` counts decoded tokens only.
    """
    lines = [line for line in page.splitlines() if line.startswith(_WANTED)]
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(b"\n".join(lines).decode() + "\n"):
        for sample in family.samples:
            if sample.labels.get("mode", "decode") != "decode":
                continue
            if column := GAUGES.get(sample.name):
                values[column] = max(values.get(column, sample.value), sample.value)
            elif column := COUNTERS.get(sample.name):
                values[column] = values.get(column, 0.0) + sample.value
    return values


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
        now = {k: v for k, v in read(text).items() if k in COUNTERS.values()}
        if now == before or clock() > deadline:
            return now
        before = now
        await asyncio.sleep(_SETTLE_S)
    return {}


class Scraper:
    """Pages of ``/metrics``, kept as bytes while traffic runs and read afterwards."""

    def __init__(self, client: Client, url: str, period_s: float) -> None:
        self._client, self._url, self._period_s = client, url, period_s
        self._pages: list[tuple[float, bytes]] = []

    async def watch(self) -> None:
        """Scrape once per period until cancelled; a server without the page is not asked again."""
        while True:
            text = await page(self._client, self._url)
            if text is not None:
                kept = [line for line in text.splitlines() if line.startswith(_WANTED)]
                self._pages.append((clock(), b"\n".join(kept)))
            elif not self._pages:
                return
            await asyncio.sleep(self._period_s)

    def write(self, folder: Path) -> None:
        """Write ``scrapes.parquet``: one row per page, columns `SCHEMA`, absent values null."""
        rows = [{"t_s": t} | read(text) for t, text in self._pages]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "scrapes.parquet")

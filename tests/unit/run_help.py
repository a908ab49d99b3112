"""A run folder whose raw records are given as small tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvtop_lib.replay.record import CHUNKS, REQUESTS
from kvtop_lib.replay.scrape import SCHEMA as SCRAPES
from kvtop_lib.store import Run, write_json


def request(chunks: list[tuple[float, int]], hist=None, **more) -> dict:
    """A request of the window that ended ok; ``chunks`` are (received, cumulative tokens)."""
    steps = sum(hist) if hist else None
    return {
        "phase": "window",
        "status": "ok",
        "session": "s",
        "turn": 0,
        "lane": 0,
        "intended_s": chunks[0][0] - 0.5,
        "sent_s": chunks[0][0] - 0.5,
        "first_token_s": chunks[0][0],
        "last_token_s": chunks[-1][0],
        "end_s": chunks[-1][0],
        "output_tokens": chunks[-1][1],
        "verify_steps": steps,
        "accepted_hist": hist,
        "proposed_drafts": steps * (len(hist) - 1) if hist else None,
        "uncounted_chunks": 0,
        "chunks": chunks,
        **more,
    }


def add_point(run: Run, arm: str, c: int, requests: list[dict], block: int = 1, **line) -> int:
    """Write a point's records and append its line; the line's number."""
    folder: Path = run.point_dir(arm, block, "agent", f"c{c}")
    folder.mkdir(parents=True)
    rows = [
        {k: v for k, v in r.items() if k != "chunks"} | {"request": i}
        for i, r in enumerate(requests)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")
    chunks = [
        {"request": i, "recv_s": t, "tokens_total": n}
        for i, r in enumerate(requests)
        for t, n in r["chunks"]
    ]
    pq.write_table(pa.Table.from_pylist(chunks, schema=CHUNKS), folder / "chunks.parquet")
    pq.write_table(SCRAPES.empty_table(), folder / "scrapes.parquet")
    write_json(folder / "recording.json", {"window": {"w0_s": 0.0, "w1_s": 100.0}, "c": c})
    at = {"arm": arm, "block": block, "workload": "agent", "load": f"c{c}", "c": c}
    return run.append_result({**at, "attempt": 1, "status": "ok", **line})

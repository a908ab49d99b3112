"""Recorded iterations of the synthetic run: ten per point, every number by hand.

All requests of a batch accept the same number of drafts, one entry of `synthetic_run.steps`
after the other, so that tokens per iteration are c times the acceptance length. KV use grows by
a tenth of the pool per iteration.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ITERATIONS = 10
KV_TOKENS = 1000
SHARES = {  # of an iteration; what is left to 1 is unmarked
    "none": {"target": 0.90, "receive": 0.02, "schedule": 0.03, "process": 0.04},
    "mtp": {
        "draft": 0.20, "verify": 0.55, "draft_extend": 0.15, "receive": 0.02, "schedule": 0.03,
        "process": 0.04,
    },
    "ngram": {"ngram": 0.10, "verify": 0.80, "receive": 0.02, "schedule": 0.03, "process": 0.04},
}  # fmt: skip
PARTS = """receive schedule launch worker target ngram draft verify draft_extend process
    record""".split()
DEVICE_PARTS = "target draft verify draft_extend".split()


def rows(method: str, width: int, c: int, step_s: float, steps: list[int], start_s: float) -> list:
    """Iterations of one point, back to back from ``start_s``."""
    found = []
    for k in range(ITERATIONS):
        tokens, drafts = steps[k % len(steps)], method != "none"
        found.append({
            "i": k, "t_s": start_s + k * step_s, "dur_s": step_s,
            "mode": "verify" if drafts else "decode", "bs": c, "width": width,
            "tokens": c * width, "prefill_tokens": 0, "cached_tokens": 0, "running": c,
            "queued": 1, "retracted": 0, "kv_used": 100 * (k + 1), "kv_evictable": 0,
            "kv_free": KV_TOKENS - 100 * (k + 1), "committed_tokens": c * tokens,
            "accepted_drafts": c * (tokens - 1) if drafts else None,
            **{f"{p}_s": SHARES[method].get(p, float("nan")) * step_s for p in PARTS},
            **{f"{p}_device_s": float("nan") for p in DEVICE_PARTS},
            "unaccounted_s": 0.01 * step_s, "requests": [f"r{i}" for i in range(c)],
            "context": [100 + k] * c, "committed": [tokens] * c,
            "accepted": [tokens - 1] * c if drafts else None, "widths": None,
            "source": [method] * c if drafts else None,
        })  # fmt: skip
    return found


def write(folder: Path, *point) -> None:
    """Write ``iterations.parquet`` of one point (parameters as `rows`)."""
    widths = pa.field("widths", pa.list_(pa.int32()))
    table = pa.Table.from_pylist(rows(*point))
    table = table.set_column(
        table.schema.get_field_index("widths"), widths, pa.nulls(len(table), widths.type)
    )
    meta = {"complete": True, "kv_tokens": KV_TOKENS, "marks": "host"}
    pq.write_table(
        table.replace_schema_metadata({"kvtop": json.dumps(meta)}), folder / "iterations.parquet"
    )

"""From the plug-in's stream of iterations to ``iterations.parquet`` of one point.

The stream (JSON lines, `kvtop_lib/sglang_plugin/recorder_writer.py` has the layout) belongs to a
server lifetime; a point takes the iterations between its first request and the end of its drain.
Both are on the run's clock, which all processes of a host share.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvtop_lib.store import read_json

PARTS = (
    "receive", "schedule", "launch", "worker", "target", "ngram", "draft", "verify",
    "draft_extend", "process", "record",
)  # fmt: skip
"""Parts of an iteration; each time is between marks of its own, nested parts taken out."""

DEVICE_PARTS = ("target", "draft", "verify", "draft_extend")

_COUNTS = """bs width tokens prefill_tokens cached_tokens running queued retracted
    kv_used kv_evictable kv_free""".split()
_LISTS = {
    "context": pa.int32(), "committed": pa.int32(), "accepted": pa.int32(), "widths": pa.int32(),
    "source": pa.string(),
}  # fmt: skip
_S, _N = pa.float64(), pa.int32()
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("t_s", _S),
        ("dur_s", _S),
        ("mode", pa.string()),
        *((name, _N) for name in _COUNTS),
        *((f"draft_kv_{name}", _N) for name in ("used", "evictable", "free")),
        ("committed_tokens", _N),
        ("accepted_drafts", _N),
        *((f"{part}_s", _S) for part in PARTS),
        ("unaccounted_s", _S),
        *((f"{part}_device_s", _S) for part in DEVICE_PARTS),
        ("requests", pa.list_(pa.string())),
        *((name, pa.list_(kind)) for name, kind in _LISTS.items()),
    ]
)
"""Columns of ``iterations.parquet``. Times in seconds, ``t_s`` on the run's clock; ``mode`` is
prefill, mixed, decode, verify or stall; ``width`` is tokens verified per request (1 in a plain
decode, null in a prefill); KV in tokens, the draft's null without a pool of its own; lists have
one entry per request of the batch, ``context`` being its tokens before the iteration."""


@dataclass(frozen=True)
class Stream:
    """A stream as far as it was written.

    Attributes
    ----------
    header : facts of the server.
    records : iterations in order, request ids resolved.
    until_s : everything that ended before is there, but for ``dropped`` records.
    ended : how the server ended; None while it runs, or when it was killed. What begins with
        "failed" is the recorder's own failure, not the server's end.
    """

    header: dict[str, Any]
    records: list[dict[str, Any]]
    until_s: float
    dropped: int
    ended: str | None


def read_stream(file: Path) -> Stream:
    """Read a stream; a last line that a kill tore is left out.

    A stream that is missing or has no first line is an empty one.
    """
    header: dict[str, Any] = {}
    names: dict[int, str] = {}
    records, until_s, dropped, ended = [], float("-inf"), 0, None
    for line in _lines(file):
        if "i" in line:
            line["requests"] = [names.get(n) for n in line["requests"]]
            records.append(line)
        elif "request" in line:
            names[line["request"]] = line["id"]
        elif "until_s" in line:
            until_s, dropped = line["until_s"], line["dropped"]
            ended = line.get("end")
        else:
            header = line
    return Stream(header, records, until_s, dropped, ended)


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    whole = file.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def row(record: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    """A record as a row of `SCHEMA`."""
    parts, device = record["parts"], record.get("device") or {}
    drafts = header.get("draft_kv_bytes") is not None
    accepted = record.get("accepted")
    return {
        **{name: record.get(name) for name in SCHEMA.names},
        **{f"{part}_s": parts.get(part) for part in PARTS},
        **{f"{part}_device_s": device.get(part) for part in DEVICE_PARTS},
        # the draft's pool holds the target's token slots
        **{
            f"draft_kv_{k}": record.get(f"kv_{k}") if drafts else None
            for k in ("used", "evictable", "free")
        },
        "committed_tokens": sum(record.get("committed") or ()),
        "accepted_drafts": None if accepted is None else sum(accepted),
        "unaccounted_s": record["dur_s"] - sum(parts.values()),
    }


def cut(file: Path, folder: Path, *, wait_s: float = 3.0, alive: bool = True) -> Path | None:
    """Write a point's iterations beside its recording.

    Parameters
    ----------
    file : the server's stream, which may still grow.
    folder : a point's folder with ``recording.json``.
    wait_s : how long to wait for the writer to pass the end of the point.
    alive : whether the server runs; one that has ended writes no more.

    Returns
    -------
    Path or None
        ``iterations.parquet``; None without a stream (a server without the plug-in). Its metadata
        (key ``kvtop``, JSON) has the header of the stream and ``complete``: whether everything
        from the point's start to its drained end is there, and ``missing_from_s`` or ``dropped``
        if not.
    """
    if not file.is_file():
        return None
    facts = read_json(folder / "recording.json")
    start_s, end_s = facts["clock"]["start_s"], facts["window"]["drained_s"]
    deadline = time.monotonic() + (wait_s if alive else 0.0)
    while (stream := read_stream(file)).until_s < end_s and time.monotonic() < deadline:
        if stream.ended is not None:
            break
        time.sleep(0.1)
    if not stream.header:
        return None
    inside = [r for r in stream.records if start_s <= r["t_s"] < end_s]
    numbers = [r["i"] for r in inside]
    gaps = numbers[-1] - numbers[0] + 1 - len(numbers) if numbers else 0
    until = stream.until_s >= end_s
    meta = {
        **stream.header,
        "complete": until and not gaps and not stream.dropped,
        "missing_from_s": None if until else max(stream.until_s, start_s),
        "dropped": max(gaps, stream.dropped),
        "ended": stream.ended,
    }
    table = pa.Table.from_pylist([row(r, stream.header) for r in inside], schema=SCHEMA)
    table = table.replace_schema_metadata({"kvtop": json.dumps(meta)})
    pq.write_table(table, folder / "iterations.parquet")
    return folder / "iterations.parquet"

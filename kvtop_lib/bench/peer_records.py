"""What each client recorded of a wave, brought to one form: request number, status, times.

A request is found in the null server's log by its first text (``#17``) or, for AIPerf, by the
``X-Request-ID`` it sent (`with_numbers`). Wall-clock times become CLOCK_MONOTONIC by the
difference of the two clocks now, on the same host.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvtop_lib.bench.driver import Seen

_NUMBER = re.compile(r"#(\d+) ")


@dataclass(frozen=True)
class Named(Seen):
    """A request that is known by the identity which its client gave it."""

    x_request_id: str = ""


def monotonic_offset_s() -> float:
    """Wall time minus CLOCK_MONOTONIC, in seconds."""
    return time.time() - time.monotonic()


def with_numbers(seen: Sequence[Seen], log: Sequence[dict]) -> list[Seen]:
    """Requests with the null server's numbers, looked up by their identity where they have one."""
    numbers = {r["x_request_id"]: r["number"] for r in log if r["x_request_id"]}
    return [
        replace(s, number=numbers.get(s.x_request_id)) if isinstance(s, Named) else s for s in seen
    ]


def driver(folder: Path) -> list[Seen]:
    """Records of KVTop's own drivers."""
    told = json.loads((folder / "records.json").read_text())
    return [Seen(**r) for r in told["requests"]]


def sglang(folder: Path) -> list[Seen]:
    """``--output-details``: time to the first text and the gaps between texts, per request.

    The start of a request is not in it, so times count from there.
    """
    told = json.loads((folder / "records.jsonl").read_text().splitlines()[-1])
    errors = told.get("errors") or [""] * len(told["ttfts"])
    seen = []
    rows = zip(told["generated_texts"], told["ttfts"], told["itls"], errors, strict=True)
    for text, first_s, gaps_s, error in rows:
        number = _NUMBER.match(text or "")
        times = np.cumsum([first_s, *gaps_s]).tolist() if text else []
        status = "ok" if text and not error else f"failed: {error or 'no text'}"
        seen.append(Seen(int(number[1]) if number else None, status, times))
    return seen


def aiperf(folder: Path) -> list[Seen]:
    """``profile_export.jsonl``: start, time to first token, gaps between chunks."""
    offset_s, seen = monotonic_offset_s(), []
    for line in next(folder.rglob("profile_export.jsonl")).read_text().splitlines():
        row = json.loads(line)
        about, values = row["metadata"], row.get("metrics") or {}
        first, gaps = (values.get(k) for k in ("time_to_first_token", "inter_chunk_latency"))
        times: list[float] = []
        if first is not None and about.get("request_start_ns"):
            start_s = about["request_start_ns"] / 1e9 - offset_s
            steps = [first["value"], *(gaps["value"] if gaps else ())]
            times = (start_s + np.cumsum(steps) / _per_second(first["unit"])).tolist()
        error = row.get("error")
        status = f"failed: {error}" if error or not times else "ok"
        seen.append(Named(None, status, times, about.get("x_request_id") or ""))
    return seen


def _per_second(unit: str) -> float:
    return {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "sec": 1.0}[unit]


@dataclass(frozen=True)
class Ends(Seen):
    """Only the first and the last chunk are known."""


def guidellm(folder: Path) -> list[Seen]:
    """JSON report: wall times of the first and last chunk of every request."""
    told = json.loads((folder / "records.json").read_text())
    offset_s, seen = monotonic_offset_s(), []
    for kind, requests in told["benchmarks"][0]["requests"].items():
        for row in requests if isinstance(requests, list) else ():
            timings = (row.get("info") or {}).get("timings") or {}
            ends = [timings.get(f"{k}_token_iteration") for k in ("first", "last")]
            number = _NUMBER.match(row.get("output") or "")
            status = "ok" if kind in ("successful", "completed") else f"failed: {kind}"
            times = [t - offset_s for t in ends if t is not None]
            seen.append(Ends(int(number[1]) if number else None, status, times))
    return seen


def ends_of(log: Sequence[dict]) -> list[dict]:
    """A log with only the first and the last chunk of every request."""
    return [r | {"sent_ns": [r["sent_ns"][0], r["sent_ns"][-1]]} for r in log if r["sent_ns"]]

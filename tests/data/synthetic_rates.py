"""Points of open loads beside or in place of the synthetic run's, every number by hand."""

from __future__ import annotations

import json
from pathlib import Path

RATES = (0.5, 1.0, 2.0)
WAIT_S = {  # median, from the time at which a request was due
    "baseline": (0.20, 0.40, 2.00),
    "mtp_w2": (0.18, 0.40, 4.00),
}
GOOD = {"baseline": (1.0, 2.0, 1.0), "mtp_w2": (1.0, 2.0, 0.0)}  # requests/s within the targets
TURNS = 2  # requests that a session asks
ENDED = {"baseline": (1.0, 2.0, 3.6), "mtp_w2": (1.0, 2.0, 3.0)}  # requests/s; 4.0 asked at last
TARGETS = {"ttft_s": 1.0}


def line(arm: str, block: int, k: int, **more) -> dict:
    """One line of results.jsonl at the k-th rate."""
    rate = RATES[k]
    good = GOOD[arm][k]
    return {
        "schema": 1, "run": "synthetic", "arm": arm, "block": block, "workload": "agent",
        "load": f"r{rate:.2f}", "c": None, "rate": rate, "attempt": 1, "status": "ok",
        "reason": "", "seed": 7, "started_utc": "2026-01-02T04:04:05Z", "window_s": 30.0,
        "key": f"{arm}-{block}-r{rate}", "shape": {"loop": "open", "arrivals": "poisson"},
        "output_tok_s": 50.0 * ENDED[arm][k], "ttft_s": {"p50": 0.1, "p90": 0.2, "p99": 0.3},
        "ttft_intended_s": {"p50": WAIT_S[arm][k], "p90": 2 * WAIT_S[arm][k],
                            "p99": "inf" if k == 2 else 3 * WAIT_S[arm][k]},
        "asked_rate": TURNS * rate, "ended_rate": ENDED[arm][k],
        "goodput": {"requests_s": good, "tok_s": 50 * good, "attainment": good / (TURNS * rate),
                    "targets": TARGETS},
        "counts": {"ok": int(30 * ENDED[arm][k]), "http_error": 0, "stream_error": 0,
                   "truncated": 0, "timeout": 0, "cancelled": 0},
        "audits": {}, "client": {}, **more,
    }  # fmt: skip


def lines() -> list[dict]:
    """Two blocks of both arms."""
    return [line(arm, b, k) for b in (1, 2) for arm in WAIT_S for k in range(len(RATES))]


def add(folder: Path, *more: dict, only: bool = False) -> Path:
    """Write the points behind those of a run, or in their place."""
    file = folder / "results.jsonl"
    old = "" if only else file.read_text()
    file.write_text(old + "".join(json.dumps(x) + "\n" for x in [*lines(), *more]))
    return folder

"""A run folder with known truth: every number in it follows from the tables below by hand.

``python tests/data/synthetic_run.py FOLDER`` writes it. Nothing of the library is used, so that
tests of the library compare two independent things.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))
import synthetic_iterations  # noqa: E402

LOADS = (1, 2, 4, 8, 16, 32)
ARMS = ("baseline", "mtp_w2", "mtp_w4", "ngram")
WIDTH = {"baseline": 1, "mtp_w2": 2, "mtp_w4": 4, "ngram": 4}
METHOD = {"baseline": "none", "mtp_w2": "mtp", "mtp_w4": "mtp", "ngram": "ngram"}
TITLE = {
    "baseline": "Baseline",
    "mtp_w2": "MTP, width 2",
    "mtp_w4": "MTP, width 4",
    "ngram": "N-gram, width 4",
}

BASE_TOK_S = dict(zip(LOADS, (40.0, 64.0, 100.0, 160.0, 200.0, 250.0), strict=True))
BASE_TTFT_S = dict(zip(LOADS, (0.10, 0.15, 0.20, 0.40, 0.80, 2.00), strict=True))
RATIO = {  # output tok/s over the baseline's, in the geometric mean of the block pairs
    "baseline": dict.fromkeys(LOADS, 1.0),
    "mtp_w2": dict(zip(LOADS, (1.30, 1.25, 1.20, 1.10, 1.00, 0.90), strict=True)),
    "mtp_w4": dict(zip(LOADS, (1.20, 1.10, 1.00, 0.90, 0.80, 0.70), strict=True)),
    "ngram": dict(zip(LOADS, (1.10, 1.05, 1.00, 0.95, 0.90, 0.85), strict=True)),
}
TTFT_RATIO = {"baseline": 1.0, "mtp_w2": 1.20, "mtp_w4": 1.50, "ngram": 1.10}
HIST = {  # verify steps by accepted drafts, of one request
    "baseline": [],
    "mtp_w2": [3, 7],  # 7 of 10 drafts: acceptance length 1.7, rate 0.7
    "mtp_w4": [3, 3, 1, 3],  # 14 of 30 drafts: 2.4 and 0.4667; by position 0.7, 4/7, 3/4
    "ngram": [8, 1, 1, 0],  # 3 of 30 drafts: 1.3 and 0.1; by position 0.2, 0.5, 0
}
BY_POSITION = {"mtp_w2": [0.7], "mtp_w4": [0.7, 4 / 7, 3 / 4], "ngram": [0.2, 0.5, 0.0]}
BUSY = 0.9  # share of a request's time that is decoding
BLOCK_SCALE = {1: 1.00, 2: 1.02}  # the whole machine was faster in block 2: no ratio may show it
PAIR_NOISE = {1: 1.01, 2: 1 / 1.01}  # of the drafting arms; leaves the geometric mean of 2 blocks
WINDOW_S = 30.0
START_S = (95.0, 100.0)  # of the warm-up request, and of the window
REQUESTS = 4  # stored per point
HOSTILE = '<script>alert("x")</script> & <img src=x onerror=alert(1)>'

FAILED = {("ngram", 2, 32): f"the server stopped answering: {HOSTILE}"}
INVALID = {("mtp_w4", 1, 16): "client tokens 812, server tokens 990: more than the edges explain"}
RETRIED = ("baseline", 1, 8)  # its first attempt failed, its second counts


def accept_len(arm: str) -> float:
    """1 + accepted drafts / verify steps."""
    steps = sum(HIST[arm])
    return 1 + sum(i * n for i, n in enumerate(HIST[arm])) / steps if steps else 1.0


def accept_rate(arm: str) -> float | None:
    """Accepted / proposed drafts (a chain of width - 1 in every step)."""
    return (accept_len(arm) - 1) / (WIDTH[arm] - 1) if WIDTH[arm] > 1 else None


def output_tok_s(arm: str, block: int, c: int) -> float:
    """Throughput of one point."""
    noise = PAIR_NOISE[block] if arm != "baseline" else 1.0
    return BASE_TOK_S[c] * BLOCK_SCALE[block] * RATIO[arm][c] * noise


def iteration_s(arm: str, block: int, c: int) -> float:
    """So that throughput = requests decoding x acceptance length / iteration time, exactly."""
    return BUSY * c * accept_len(arm) / output_tok_s(arm, block, c)


def ttft_s(arm: str, c: int) -> float:
    """Median time to first token."""
    return BASE_TTFT_S[c] * TTFT_RATIO[arm]


def line(arm: str, block: int, c: int, attempt: int = 1, failed: str = "") -> dict:
    """One line of results.jsonl."""
    point = (arm, block, c)
    reason = failed or FAILED.get(point) or INVALID.get(point)
    status = "ok"
    if reason:
        status = "invalid" if point in INVALID else "failed"
    record = {
        "schema": 1, "run": "synthetic", "arm": arm, "block": block, "workload": "agent",
        "load": f"c{c}", "c": c, "attempt": attempt, "status": status, "reason": reason,
        "seed": 7, "started_utc": "2026-01-02T03:04:05Z", "key": f"{arm}-{block}-{c}",
        "window_s": WINDOW_S,
    }  # fmt: skip
    if status != "ok":
        return record
    tok_s, step = output_tok_s(arm, block, c), iteration_s(arm, block, c)
    tpot, ttft = step / accept_len(arm), ttft_s(arm, c)
    return record | {
        "output_tok_s": tok_s,
        "request_tok_s": {"p50": BUSY / tpot},
        "decode_tok_s": {"p50": 1 / tpot},
        "ttft_s": {"p50": ttft, "p90": 2 * ttft, "p99": 3 * ttft},
        "tpot_s": {"p50": tpot, "p90": 1.2 * tpot, "p99": 1.5 * tpot},
        "itl_s": {"p50": tpot, "p99": 2 * tpot},
        "e2e_s": {"p50": ttft + 50 * tpot, "p90": ttft + 80 * tpot, "p99": ttft + 99 * tpot},
        "counts": {"ok": 6 * c, "http_error": 0, "stream_error": 0, "truncated": 0,
                   "timeout": 1 if c == 32 else 0, "cancelled": 0},
        "requests_window": 6 * c,
        "output_tokens_window": round(tok_s * WINDOW_S),
        "active_mean": float(c), "queued_mean": 0.0, "in_flight_mean": float(c),
        "decoding_mean": BUSY * c, "tokens_per_step": accept_len(arm) if HIST[arm] else None,
        "accept_len": accept_len(arm) if HIST[arm] else None,
        "accept_rate": accept_rate(arm), "accept_by_position": BY_POSITION.get(arm),
        "verify_steps": REQUESTS * sum(HIST[arm]),
        "iteration_s": {"p50": step},
        "audits": {"tokens": {"ok": True, "value": 1.0, "expected": 1.0, "reason": ""}},
        "client": {"loop_lag_p99_s": 0.001},
    }  # fmt: skip


def steps(arm: str) -> list[int]:
    """Tokens of every verify step of one request, in order."""
    accepted = [i for i, n in enumerate(HIST[arm]) for _ in range(n)]
    return [1 + i for i in accepted] or [1] * 17


def requests(arm: str, block: int, c: int) -> pd.DataFrame:
    """Requests of one point: one in the warm-up, the others in the window."""
    step, ttft, n = iteration_s(arm, block, c), ttft_s(arm, c), len(steps(arm))
    tokens = 1 + sum(steps(arm))  # the prefill yields the first one
    drafts = bool(HIST[arm])
    rows = []
    for i in range(REQUESTS + 1):
        sent, first = START_S[i > 0] + i, START_S[i > 0] + i + ttft
        rows.append({
            "request": i, "response_id": f"r{i}", "lane": i % c, "session": f"agent-{i:04d}",
            "turn": 0, "phase": "window" if i else "warmup", "intended_s": sent, "sent_s": sent,
            "first_byte_s": first, "first_token_s": first, "last_token_s": first + n * step,
            "end_s": first + n * step, "prompt_tokens": 100, "cached_tokens": 0,
            "output_tokens": tokens, "status": "ok", "error": None, "finish_reason": "stop",
            "verify_steps": n if drafts else None, "accepted_hist": HIST[arm] or None,
            "proposed_drafts": n * (WIDTH[arm] - 1) if drafts else None,
            "output_sha256": f"{i:064x}", "expected_output_tokens": tokens,
            "matches_recorded": True, "uncounted_chunks": 0,
        })  # fmt: skip
    return pd.DataFrame(rows)


def chunks(arm: str, block: int, c: int) -> pd.DataFrame:
    """Chunks of the requests: the first token, then one chunk per verify step."""
    step, rows = iteration_s(arm, block, c), []
    for request in requests(arm, block, c).itertuples():
        total = 1
        rows.append((request.request, request.first_token_s, total))
        for k, n in enumerate(steps(arm), 1):
            total += n
            rows.append((request.request, request.first_token_s + k * step, total))
    return pd.DataFrame(rows, columns=["request", "recv_s", "tokens_total"])


def lossless(arm: str) -> dict:
    """Result of the lossless probe: the baseline stores its outputs, one n-gram output differs."""
    matched = {"mtp_w2": 20, "mtp_w4": 20, "ngram": 19}.get(arm)
    mismatches = [{"prompt": "agent-0003/1", "position": 5}] if arm == "ngram" else []
    role = "reference" if arm == "baseline" else "compared"
    return {"role": role, "prompts": 20, "matched": matched, "c": 8, "mismatches": mismatches}


def order() -> list[tuple[str, int]]:
    """Interleaved blocks: A B C D, then D C B A."""
    return [(a, 1) for a in ARMS] + [(a, 2) for a in reversed(ARMS)]


def manifest(run: str = "synthetic") -> dict:
    """Parameters and provenance of the run, the part of them that the note reads."""
    return {
        "schema": 1,
        "run": run,
        "profile": {
            "id": "synthetic", "title": "Synthetic", "model": "demo", "arms": list(ARMS),
            "workload": "agent", "loads": list(LOADS), "blocks": len(BLOCK_SCALE), "seed": 7,
            "burn_in_s": 3.0, "warmup_s": 4.0, "window_s": WINDOW_S, "drain_s": 12.0,
            "timeout_s": 60.0, "lossless_prompts": 20,
        },
        "arms": {
            arm: {"id": arm, "title": TITLE[arm], "layout": "single",
                  "draft": {"method": METHOD[arm], "width": WIDTH[arm]}}
            for arm in ARMS
        },
        "model": {"id": "demo", "title": "Demo model", "weights": "made up", "dtype": "float32",
                  "device": "cpu"},
        "workload": {"id": "agent", "title": "Agent sessions, recorded history",
                     "trace": "builtin:agent"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "machine": {"cpu_model": "Imaginary CPU", "cores": 2, "gpu": None},
        "engine": {"name": "sglang", "version": "0.5.23"},
        "trace": {"name": "agent", "sha256": "ab" * 32},
    }  # fmt: skip


def write_run(folder: Path) -> Path:
    """Write the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest(folder.name), indent=1))
    lines = []
    for arm, block in order():
        home = folder / arm / f"b{block}"
        home.mkdir(parents=True, exist_ok=True)
        deployment = {"arm": arm, "startup_s": 20.4, "kv_tokens": 100_000, "memory_bytes": 1.52e9}
        (home / "deployment.json").write_text(json.dumps(deployment))
        probed = folder / arm / "deploy"
        probed.mkdir(exist_ok=True)
        (probed / "deployment.json").write_text(
            json.dumps(deployment | {"lossless": lossless(arm)})
        )
        for c in LOADS:
            if (arm, block, c) == RETRIED:
                lines.append(line(arm, block, c, failed="connection reset by peer"))
            lines.append(line(arm, block, c, attempt=2 if (arm, block, c) == RETRIED else 1))
            attempt = lines[-1]["attempt"]
            point = home / "agent" / (f"c{c}" if attempt == 1 else f"c{c}.a{attempt}")
            point.mkdir(parents=True, exist_ok=True)
            (point / "point.json").write_text(json.dumps(lines[-1]))
            requests(arm, block, c).to_parquet(point / "requests.parquet")
            chunks(arm, block, c).to_parquet(point / "chunks.parquet")
            synthetic_iterations.write(
                point, METHOD[arm], WIDTH[arm], c, iteration_s(arm, block, c), steps(arm),
                START_S[1],
            )  # fmt: skip
            scrapes = pd.DataFrame({"t_s": pd.Series(dtype=float)})
            scrapes.to_parquet(point / "scrapes.parquet")
            window = {"w0_s": START_S[1], "w1_s": START_S[1] + WINDOW_S}
            (point / "recording.json").write_text(json.dumps({"window": window}))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


if __name__ == "__main__":
    print(write_run(Path(sys.argv[1])))

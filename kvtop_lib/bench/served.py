"""What an iteration of the served model costs beside a bare loop of the same kernels.

``python -m kvtop_lib.bench.served`` serves the embedded model, keeps B requests decoding at once
and takes the median gap between a request's chunks, which is one iteration, since every iteration
sends one chunk per request. The bare loop has no scheduler, no HTTP and no draft layer. An arm
that is deployed for drafting and runs at width 1 shows what keeping the draft layer ready costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd

from kvtop_lib.engine import Server
from kvtop_lib.engine.command import SERVED_NAME
from kvtop_lib.params import Arm, Model, load_arm, load_model
from kvtop_lib.replay import Plan, SessionPool, flush, run_point
from kvtop_lib.trace import Session, load_trace

BATCHES = (1, 8, 32)
GOAL = 1.25  # served over bare
STEADY = Plan(
    burn_in_s=3, warmup_s=2, window_s=5, drain_s=0, timeout_s=60, output="recorded", stagger_s=0.1
)
OUTPUT_TOKENS = 900  # longer than a point lasts, so that no request ends in the window


def steady_sessions(sessions: tuple[Session, ...], context_tokens: int) -> list[Session]:
    """First turns that go on generating until the point ends."""
    return [
        replace(
            s, turns=(replace(s.turns[0], output_tokens=min(OUTPUT_TOKENS, context_tokens // 2)),)
        )
        for s in sessions
    ]


def iteration_s(folder: Path) -> float:
    """Median gap between the chunks of a request inside the window, in seconds."""
    window = json.loads((folder / "recording.json").read_text())["window"]
    chunks = pd.read_parquet(folder / "chunks.parquet").sort_values(["request", "recv_s"])
    gaps = chunks.groupby("request")["recv_s"].diff()
    inside = chunks["recv_s"].between(window["w0_s"], window["w1_s"])
    return float(gaps[inside].median())


def served(model: Model, arm: Arm, folder: Path) -> dict[int, float]:
    """Iteration time by number of requests decoding, in seconds."""
    sessions = steady_sessions(load_trace("builtin:agent").sessions, model.context_tokens)
    pool = SessionPool(sessions, BATCHES, seed=1)
    times = {}
    with Server.launch(model, arm, folder) as server:
        for batch in BATCHES:
            flush(server.url)
            point = folder / f"b{batch}"
            run_point(
                server.url,
                SERVED_NAME,
                pool.slice(batch),
                batch,
                STEADY,
                1,
                point,
                labels={"arm": arm.id},
                progress="off",
            )
            times[batch] = iteration_s(point)
    return times


def bare(model: Model) -> dict[tuple[int, int], float]:
    """Iteration time of the bare loop by (requests, width), in seconds."""
    command = [sys.executable, "-m", "kvtop_lib.sglang_plugin.bare_loop", "bench", "--json"]
    done = subprocess.run(
        [*command, "--model", str(model.path)], check=True, capture_output=True, text=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(r["requests"], r["width"]): r["wall_s"] for r in rows}


def width_run(arm: Arm) -> int:
    """Tokens that every iteration verifies per request; the largest where a policy chooses."""
    kind, _, width = (arm.draft.policy or "").partition(":")
    return int(width) if kind == "fixed" else arm.draft.width


def main(argv: list[str] | None = None) -> None:
    """Print the table for the arms named (three, from no draft layer to drafting, when none is)."""
    parser = argparse.ArgumentParser(prog="kvtop_lib.bench.served", description=__doc__)
    parser.add_argument("arms", nargs="*", default=["baseline", "mtp_width_off", "mtp_w2"])
    parser.add_argument("--model", default="smollm2-mtp")
    args = parser.parse_args(argv)
    model = load_model(args.model)
    reference, first = bare(model), {}
    print(f"goal for the baseline: at most {GOAL}; drafting arms include draft and draft-extend")
    print(f"arm            requests  width  served ms  over {args.arms[0]}  bare ms  ratio")
    with tempfile.TemporaryDirectory() as folder:
        for arm in map(load_arm, args.arms):
            times, width = served(model, arm, Path(folder) / arm.id), width_run(arm)
            first = first or times
            for batch, seconds in times.items():
                base = reference.get((batch, width))
                ratio = f"{base * 1e3:7.1f}  {seconds / base:5.2f}" if base else "      -      -"
                over = f"{seconds / first[batch]:{len(args.arms[0]) + 5}.2f}"
                print(
                    f"{arm.id:14s} {batch:8d}  {width:5d}  {seconds * 1e3:9.1f}  {over}  {ratio}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

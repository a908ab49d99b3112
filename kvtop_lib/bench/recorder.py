"""What the iteration recorder costs: iteration time with and without it, alternating.

``python -m kvtop_lib.bench.recorder`` serves one arm several times, recorder on and off in turn
(on off off on ...), keeps requests decoding and compares the median gap between a request's
chunks. A server is one sample: two servers of one kind differ too, and by how much is printed.
Where that hides the difference, the recorder's own marked part of an iteration still tells what it
does on the scheduler's thread; its marks around other parts and its writer are not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from kvtop_lib.bench.served import STEADY, iteration_s, steady_sessions
from kvtop_lib.engine import SERVED_NAME, Server
from kvtop_lib.engine.iterations_stream import read_stream
from kvtop_lib.params import Arm, Model, load_arm, load_model
from kvtop_lib.replay import SessionPool, flush, run_point
from kvtop_lib.trace import load_trace

GOAL = 0.01  # of an iteration at batch 1
BATCHES = (1, 8)


def lifetime(model: Model, arm: Arm, folder: Path) -> dict[int, float]:
    """Iteration time by number of requests decoding, in seconds, of one server."""
    sessions = steady_sessions(load_trace("builtin:agent").sessions, model.context_tokens)
    pool, times = SessionPool(sessions, BATCHES, seed=1), {}
    with Server.launch(model, arm, folder) as server:
        for batch in BATCHES:
            flush(server.url)
            point = run_point(
                server.url, SERVED_NAME, pool.slice(batch), batch, STEADY, 1, folder / f"b{batch}",
                labels={"arm": arm.id}, progress="off",
            )  # fmt: skip
            times[batch] = iteration_s(point)
    return times


def own_shares(records: list[dict], batch: int) -> list[float]:
    """Share of each decoding iteration of `batch` requests that the recorder marked as its own."""
    return [
        r["parts"].get("record", 0.0) / r["dur_s"]
        for r in records
        if r["bs"] == batch and r["mode"] in ("decode", "verify")
    ]


def order(pairs: int) -> list[bool]:
    """Recorder on or off, one entry per server: on off off on on off ..."""
    return [on for i in range(pairs) for on in ((True, False) if i % 2 == 0 else (False, True))]


def table(
    samples: list[tuple[bool, dict[int, float]]], shares: dict[int, list[float]]
) -> list[str]:
    """Lines of the table: medians over the servers of a kind, their ratio and spread.

    ``shares`` has by batch the `own_shares` of all iterations, of which the median is shown.
    """
    lines = ["requests  off ms  on ms  overhead  spread of servers of one kind  own part"]
    for batch in samples[0][1]:
        kinds = {on: [t[batch] for was_on, t in samples if was_on is on] for on in (False, True)}
        off, on = (statistics.median(kinds[k]) for k in (False, True))
        spread = max((max(v) - min(v)) / statistics.median(v) for v in kinds.values())
        lines.append(
            f"{batch:8d}  {off * 1e3:6.2f}  {on * 1e3:5.2f}  {on / off - 1:+8.2%}  {spread:29.2%}"
            f"  {statistics.median(shares[batch]):8.3%}"
        )
    return lines


def main(argv: list[str] | None = None) -> None:
    """Print the table of one arm."""
    parser = argparse.ArgumentParser(prog="kvtop_lib.bench.recorder", description=__doc__)
    parser.add_argument("arm", nargs="?", default="mtp_w2")
    parser.add_argument("--model", default="smollm2-mtp")
    parser.add_argument("--pairs", type=int, default=2, help="servers with, and as many without")
    args = parser.parse_args(argv)
    model, arm = load_model(args.model), load_arm(args.arm)
    samples, shares = [], {batch: [] for batch in BATCHES}
    with tempfile.TemporaryDirectory() as folder:
        for i, on in enumerate(order(args.pairs)):
            kind = arm.model_copy(update={"record_iterations": on})
            place = Path(folder) / str(i)
            samples.append((on, lifetime(model, kind, place)))
            records = read_stream(place / "iterations.jsonl").records
            for batch in BATCHES:
                shares[batch] += own_shares(records, batch)
    print(f"recorder on {arm.id}; goal: at most {GOAL:.0%} at one request")
    print("\n".join(table(samples, shares)))


if __name__ == "__main__":
    main()

"""Soak: random arrivals, aborts and width changes on one server, for as long as one likes.

``python -m kvtop_lib.bench.soak`` serves the tiny model with n-gram and MTP drafts and a table
that changes the width with the number of running requests. It fails when a request fails that
nobody aborted, when the server ends, or when KV tokens or requests are left over at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvtop_lib.engine import Server
from kvtop_lib.engine.client import call
from kvtop_lib.params import Arm, load_model
from kvtop_lib.replay import flush
from kvtop_lib.terms import KvtopError

ARM = Arm(
    id="soak",
    title="Soak",
    draft={
        "method": "mtp_ngram",
        "widths": [1, 2, 4],
        "policy": "table",
        "table": {1: 1, 2: 4, 4: 2, 6: 1, 8: 4},
        "min_match": 2,
    },
)
LANES = 12
STATE = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
CODE = "def f{}(x, y):\n    total = x * {} + y\n    return total\n"


@dataclass
class Tally:
    """What the lanes did."""

    ended: int = 0
    aborted: int = 0
    failed: list[str] = field(default_factory=list)


def lane(server: Server, seed: int, until: float, tally: Tally, lock: threading.Lock) -> None:
    """One after the other: a request, read to its end or aborted somewhere, then a pause."""
    rng, seen = random.Random(seed), []
    while time.monotonic() < until:
        body = "".join(CODE.format(rng.randrange(99), rng.randrange(99)) for _ in range(3))
        text = rng.choice(seen) if seen and rng.random() < 0.3 else body * rng.randrange(1, 12)
        seen = [*seen[-20:], text]
        lines = rng.randrange(1, 12) if rng.random() < 0.3 else None
        try:
            whole = stream(server.url, text, rng.randrange(1, 120), lines)
            with lock:
                tally.ended += whole
                tally.aborted += not whole
        except Exception as error:
            with lock:
                tally.failed.append(f"{type(error).__name__}: {error}")
        time.sleep(rng.expovariate(2.0))


def stream(url: str, text: str, tokens: int, lines: int | None) -> bool:
    """Stream one answer; hang up after `lines` events. Whether it was read to its end."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    try:
        body = json.dumps({"text": text, "sampling_params": sampling, "stream": True})
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise KvtopError(f"the server answered {reply.status}: {reply.read()[:200]!r}")
        events, done = 0, False
        for line in reply:
            events += line.startswith(b"data:")
            done |= line.startswith(b"data: [DONE]")
            if lines is not None and events >= lines and not done:
                return False
        if not done:
            raise KvtopError("the stream ended before its last event")
        return True
    finally:
        connection.close()


def leftovers(url: str, wait_s: float = 60) -> dict[str, float]:
    """Requests and KV tokens in the server once its cache was flushed; empty when there are none.

    Raises
    ------
    KvtopError
        When the server does not become idle, so that it refuses to flush.
    """
    flush(url, wait_s)
    end = time.monotonic() + wait_s
    while True:
        load = call(f"{url}/v1/loads", timeout_s=30)["loads"][0]
        left = {name: load[name] for name in STATE if load[name]}
        if not left or time.monotonic() > end:
            return left
        time.sleep(1)  # the server publishes its load now and then


def soak(folder: Path, minutes: float, lanes: int = LANES, seed: int = 1) -> Tally:
    """Run the soak; the server's log and the draft log stay in `folder`.

    Raises
    ------
    KvtopError
        When the server ended, a request failed, or something was left over.
    """
    tally, lock = Tally(), threading.Lock()
    with Server.launch(load_model("tiny-glm"), ARM, folder) as server:
        until = time.monotonic() + 60 * minutes
        threads = [
            threading.Thread(target=lane, args=(server, seed * 1000 + i, until, tally, lock))
            for i in range(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not server.alive:
            raise KvtopError(f"the server ended during the soak; see {server.log_file}")
        if tally.failed:
            raise KvtopError(f"{len(tally.failed)} requests failed, the first: {tally.failed[0]}")
        if left := leftovers(server.url):
            raise KvtopError(f"left over in the idle server: {left}")
        if "leak detected" in server.log_file.read_text(encoding="utf-8", errors="replace"):
            raise KvtopError(f"the engine itself found a leak; see {server.log_file}")
    return tally


def main(argv: list[str] | None = None) -> int:
    """Run and print what happened; status 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="kvtop_lib.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--lanes", type=int, default=LANES)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            tally = soak(Path(folder), args.minutes, args.lanes)
        except KvtopError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
    print(f"soak: {tally.ended} requests ended, {tally.aborted} were aborted, nothing left over")
    return 0


if __name__ == "__main__":
    sys.exit(main())

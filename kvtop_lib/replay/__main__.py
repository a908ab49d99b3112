"""``python -m kvtop_lib.replay``: one closed-loop point from the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import urlsplit

from kvtop_lib.metrics import derive, summary
from kvtop_lib.replay import Plan, SessionPool, flush, run_point
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import load_trace


def _lanes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lanes from 1 on")
    return int(text)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form http://host:port")
    return text.rstrip("/")


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m kvtop_lib.replay", description=__doc__)
    p.add_argument("--url", type=_url, required=True, help="server, http://host:port")
    p.add_argument("--model", required=True, help="model name in the requests")
    p.add_argument("--trace", default="builtin:agent", help="session file or builtin:agent")
    p.add_argument("--concurrency", type=_lanes, required=True, help="lanes of the closed loop")
    for name, value, text in (
        ("burn-in", 5, "start of traffic, not representative"),
        ("warmup", 10, "representative, not measured"),
        ("window", 60, "measured"),
        ("drain", 30, "longest wait for the last requests"),
        ("timeout", 60, "longest silence of one request"),
        ("stagger", 1, "lanes start spread over this time"),
    ):
        p.add_argument(f"--{name}", type=float, default=value, help=f"seconds: {text}")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--output", choices=("natural", "recorded"), default="natural")
    p.add_argument("--max-output-tokens", type=int, default=128)
    p.add_argument("--think-factor", type=float, default=0.0, help="recorded think time times this")
    p.add_argument("--no-flush", action="store_true", help="leave the server's caches warm")
    p.add_argument("--out", type=Path, required=True, help="folder of the records")
    return p


def main(argv: list[str] | None = None) -> int:
    """Replay one point; 0 when its status is ``ok``, 1 otherwise, 130 after an interrupt."""
    a = _parser().parse_args(argv)
    try:
        plan = Plan(
            a.burn_in, a.warmup, a.window, a.drain, a.timeout, a.stagger, a.think_factor, a.output,
            a.max_output_tokens,
        )  # fmt: skip
        pool = SessionPool(load_trace(a.trace).sessions, [a.concurrency], a.seed)
        if not a.no_flush:
            flush(a.url)
        labels = {"run": a.out.name, "arm": a.model, "block": 1, "workload": a.trace, "attempt": 1}
        code = 0
        try:
            run_point(
                a.url, a.model, pool.slice(a.concurrency), a.concurrency, plan, a.seed, a.out,
                labels=labels,
            )  # fmt: skip
        except KeyboardInterrupt:
            code = 130
        point = derive(a.out)
    except (KvtopError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(summary(point))
    return code or int(point["status"] != "ok")


if __name__ == "__main__":
    raise SystemExit(main())

"""What the drivers of the null server have in common: the request, and what was seen of it."""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

PROMPT = "Please read the following text and answer in as many words as you are asked for."


@dataclass(frozen=True)
class Seen:
    """One request as its client saw it.

    Attributes
    ----------
    number
        The null server's number of it; None when it was never told.
    status
        ``ok`` or what went wrong.
    recv_s
        When each chunk with a token was received, CLOCK_MONOTONIC in seconds.
    """

    number: int | None
    status: str
    recv_s: list[float]


def payload(chunks: int) -> bytes:
    """Body of a request for so many chunks, as a measured point would send it."""
    return json.dumps(
        {
            "model": "null-server",
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0.0,
            "max_tokens": chunks,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
        }
    ).encode()


def run_driver(
    name: str, text: str, drive: Callable[[str, int, int], tuple[list[Seen], dict[str, float]]]
) -> None:
    """Command line of a driver; the records go to ``--out``."""
    parser = argparse.ArgumentParser(prog=name, description=text)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--chunks", type=int, required=True, help="chunks of each stream")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    seen, cost = drive(args.url, args.streams, args.chunks)
    cost["max_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    args.out.write_text(json.dumps({"requests": [asdict(s) for s in seen], "cost": cost}))

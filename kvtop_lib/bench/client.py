"""What a streaming client costs, beside its peers and a bare socket reader.

``python -m kvtop_lib.bench.client`` runs one wave of streams per client and load against the
null server (`kvtop_lib.bench.null_server`), prints a table and writes the numbers to
``outputs/bench``. docs/bench.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kvtop_lib.bench.launch import Null
from kvtop_lib.bench.memory import bytes_per_chunk
from kvtop_lib.bench.peers import Peer, peers, tokenizer
from kvtop_lib.bench.rows import Row, measure
from kvtop_lib.bench.table import DELAY_STREAMS, MANY, markdown
from kvtop_lib.paths import outputs_dir
from kvtop_lib.provenance import machine
from kvtop_lib.replay.point import check_folder
from kvtop_lib.store import write_json
from kvtop_lib.terms import KvtopError

OWN = ("floor", "kvtop")
SPARE_S = 240.0
"""Time a client may take beside its streams: start-up, prompts, reports."""


def plan(chosen: Sequence[Peer], loads: Sequence[int], many: int) -> list[tuple[Peer, int, bool]]:
    """(client, streams, all at once) of every wave, in order.

    Every client at every load with spread streams; floor and KVTop also with many streams, and
    with all streams sending at the same moment, as an engine's iteration does.
    """
    own = [p for p in chosen if p.id in OWN]
    waves = [(p, n, False) for n in loads for p in chosen]
    waves += [(p, many, False) for p in own] if many else []
    return waves + [(p, DELAY_STREAMS, True) for p in own if DELAY_STREAMS in loads]


def bench(
    waves: Sequence[tuple[Peer, int, bool]], seconds: float, folder: Path, say=lambda text: None
) -> list[Row]:
    """Run the waves one after the other, each alone on the machine."""
    rows = []
    for together in (False, True):
        mine = [w for w in waves if w[2] == together]
        if not mine:
            continue
        with Null(together=together) as null:
            for peer, streams, _ in mine:
                place = folder / f"{peer.id}-{streams}{'-at-once' * together}"
                rows.append(measure(null, peer, streams, seconds, place, SPARE_S))
                say(f"{peer.title}, {streams} streams: {rows[-1].reason or 'measured'}")
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure, print the tables, write them; 1 when nothing could be measured."""
    known = peers()
    parser = argparse.ArgumentParser(
        prog="kvtop_lib.bench.client", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--streams", default="1,32,128,512", help="loads, with commas")
    parser.add_argument("--many", type=int, default=MANY, help="streams of the last load; 0: none")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a stream")
    parser.add_argument("--only", default=",".join(known), help="clients, with commas")
    parser.add_argument("--keep", type=Path, help="folder for the clients' own records and logs")
    args = parser.parse_args(argv)
    target = outputs_dir() / "bench"
    try:
        chosen, loads = _chosen(args.only, known), _loads(args.streams)
        if args.many < 0:
            raise KvtopError(f"--many is {args.many}; give a number of streams, or 0 for none")
        if not 0 < args.seconds < float("inf"):
            raise KvtopError(f"--seconds is {args.seconds}; give a finite number above 0")
        for folder in filter(None, (target, args.keep)):
            check_folder(folder)
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.keep or Path(temporary)).resolve()
            rows = bench(
                plan(chosen, loads, args.many), args.seconds, folder,
                lambda text: print(text, file=sys.stderr, flush=True),
            )  # fmt: skip
    except KvtopError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    kept = bytes_per_chunk() if any(p.id == "kvtop" for p in chosen) else None
    text = markdown(rows, kept)
    target.mkdir(parents=True, exist_ok=True)
    told = {
        "measured_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "seconds": args.seconds,
        "machine": machine(),
        "kept_bytes_per_chunk": kept,
        "rows": [r.as_dict() for r in rows],
    }
    write_json(target / "client.json", told)
    (target / "client.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if any(r.cpu_us is not None for r in rows) else 1


def _chosen(text: str, known: dict[str, Peer]) -> list[Peer]:
    ids = [s.strip() for s in text.split(",") if s.strip()]
    unknown = [i for i in ids if i not in known]
    if unknown or not ids:
        raise KvtopError(f"--only names {unknown or 'nobody'}; known are {', '.join(known)}")
    if set(ids) - set(OWN) and not (Path(tokenizer()) / "tokenizer.json").exists():
        raise KvtopError("the peers need the tokenizer of the embedded model; run make model")
    return [known[i] for i in ids]


def _loads(text: str) -> list[int]:
    parts = [s.strip() for s in text.split(",")]
    if not all(s.isdecimal() and int(s) > 0 for s in parts):
        raise KvtopError(f"--streams {text!r} is not a list of numbers from 1 on")
    return [int(s) for s in parts]


if __name__ == "__main__":
    raise SystemExit(main())

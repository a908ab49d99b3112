"""One row of the benchmark: a client at a load, from its life, its records and the log."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvtop_lib.bench.delays import added, failed
from kvtop_lib.bench.launch import Null, cores
from kvtop_lib.bench.peer_records import Ends, ends_of, with_numbers
from kvtop_lib.bench.peers import Peer, Wave
from kvtop_lib.bench.watch import Life, watch
from kvtop_lib.terms import KvtopError

SHORT_CHUNKS = 20
SATURATED = 0.9
"""Share of its cores from which on a client's delays tell of queueing, not of the client."""


@dataclass
class Row:
    """A client at a load; a field is None where it could not be measured, ``reason`` says why.

    Attributes
    ----------
    own_us
        CPU per chunk by the client's own clock: sending, reading and parsing; only KVTop, floor.
    stream_us
        CPU per chunk while all streams ran, microseconds; without start-up and final work.
    whole_us
        CPU per chunk by the difference of two whole lives, final work included.
    p50_s, p99_s
        Added delay; ``at_least`` marks lower bounds, ``what`` which chunks were matched.
    core_share
        CPU used while streaming, as a share of the client's cores.
    """

    peer: str
    title: str
    streams: int
    chunks: int
    together: bool = False
    reason: str | None = None
    own_us: float | None = None
    stream_us: float | None = None
    whole_us: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    at_least: bool = False
    what: str | None = None
    failed: int | None = None
    memory_bytes: int | None = None
    raw_peak_bytes: int | None = None
    core_share: float | None = None
    server: dict | None = None

    @property
    def saturated(self) -> bool:
        """The client had no CPU left."""
        return self.core_share is not None and self.core_share >= SATURATED

    @property
    def cpu_us(self) -> float | None:
        """CPU per chunk for comparisons: all of it for KVTop and floor, streaming for peers."""
        return self.stream_us if self.own_us is None else self.own_us

    def as_dict(self) -> dict:
        """All fields, for the records."""
        return asdict(self)


def measure(
    null: Null, peer: Peer, streams: int, seconds: float, folder: Path, limit_s: float
) -> Row:
    """Run a client once for ``seconds`` (peers also for a short time) and make its row."""
    chunks = max(SHORT_CHUNKS + 10, round(seconds / null.period_s))
    row = Row(peer.id, peer.title, streams, chunks, null.together)
    try:
        life, log = _wave(null, peer, streams, chunks, folder, limit_s)
        if life.returncode:
            row.reason = _why(life, folder)
        _from_life(row, life)
        _from_records(row, peer, folder, log)
        if row.own_us is None and not row.reason:
            short, _ = _wave(null, peer, streams, SHORT_CHUNKS, folder / "short", limit_s)
            if not short.returncode:
                more = streams * (chunks - SHORT_CHUNKS)
                row.whole_us = (life.cpu_s - short.cpu_s) / more * 1e6
    except KvtopError as e:
        row.reason = str(e)
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as e:
        row.reason = row.reason or f"its records cannot be read ({type(e).__name__}: {e})"
    return row


def _wave(null: Null, peer: Peer, streams: int, chunks: int, folder: Path, limit_s: float):
    folder.mkdir(parents=True, exist_ok=True)
    command = peer.command(Wave(null.url, streams, chunks, folder))
    life = watch(
        null, command, streams, folder, limit_s + chunks * null.period_s, peer.environment()
    )
    return life, null.ask("log")


def _why(life: Life, folder: Path) -> str:
    if life.returncode == -1:
        return "it did not end in time"
    lines = [s.strip() for s in (folder / "log.txt").read_text(errors="replace").splitlines()]
    last = next((s for s in reversed(lines) if s), "no message")
    return f"it ended with code {life.returncode}: {last[:160]}"


def _from_life(row: Row, life: Life) -> None:
    row.memory_bytes, row.server = life.memory_bytes, life.server
    if life.stream_chunks:
        row.stream_us = life.stream_cpu_s / life.stream_chunks * 1e6
        row.core_share = life.stream_cpu_s / life.stream_wall_s / len(cores()[1])


def _from_records(row: Row, peer: Peer, folder: Path, log: list[dict]) -> None:
    seen = with_numbers(peer.records(folder), log)
    row.failed = failed(seen, row.streams)
    sent = ends_of(log) if seen and isinstance(seen[0], Ends) else log
    if delays := added(seen, sent, peer.relative, peer.what):
        row.p50_s, row.p99_s, row.at_least = delays.p50_s, delays.p99_s, delays.at_least
        row.what = delays.what
    told = folder / "records.json"
    cost = json.loads(told.read_text()).get("cost") if told.exists() else None
    if cost:
        row.own_us = cost["cpu_s"] / (row.streams * row.chunks) * 1e6
        row.raw_peak_bytes = cost.get("raw_peak_bytes")

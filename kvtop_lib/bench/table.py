"""The client benchmark as Markdown: what was measured, ratios, and the goals beside it."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop_lib.bench.rows import Row

CPU_US, DELAY_S, LEANER, MANY, KEPT_BYTES, RAW_BYTES = 8.0, 0.001, 5.0, 2000, 100.0, 64 * 2**20
DELAY_STREAMS = 128
HEAD = (
    "streams", "client", "CPU/chunk (us)", "of which streaming", "by two lives", "to KVTop",
    "to floor", "delay p50 (ms)", "delay p99 (ms)", "failed", "memory (MiB)", "cores used",
)  # fmt: skip


def markdown(rows: Sequence[Row], kept_bytes: float | None) -> str:
    """Both tables and what the columns mean."""
    lines = [_line(HEAD), _line(["---:", ":---", *["---:"] * (len(HEAD) - 2)])]
    lines += [_line(_cells(row, rows)) for row in rows]
    notes = [f"- {r.title}, {r.streams} streams: {r.reason}" for r in rows if r.reason]
    notes += [
        f"- {r.title}, {r.streams} streams: saturated, its delays are those of a queue"
        for r in rows
        if r.saturated
    ]
    goals = [_line(["goal", "measured", "met"]), _line([":---", ":---", ":---"])]
    goals += [_line(g) for g in judged(rows, kept_bytes)]
    return "\n".join([*lines, "", *notes, *[""] * bool(notes), *goals, ""])


def judged(rows: Sequence[Row], kept_bytes: float | None) -> list[tuple[str, str, str]]:
    """Goal, what was measured, and whether it was met."""
    ours = [r for r in rows if r.peer == "kvtop" and not r.together]
    floor = {r.streams: r for r in rows if r.peer == "floor" and not r.together}
    peers = [r for r in rows if r.peer not in ("kvtop", "floor") and not r.together]
    cpu = [r.own_us for r in ours if r.own_us is not None]
    at = next((r for r in ours if r.streams == DELAY_STREAMS), None)
    bare = floor.get(DELAY_STREAMS)
    more = at.p99_s - bare.p99_s if at and bare and None not in (at.p99_s, bare.p99_s) else None
    many = next((r.failed for r in ours if r.streams >= MANY), None)
    raw = max((r.raw_peak_bytes for r in ours if r.raw_peak_bytes is not None), default=None)
    found = [
        (f"at most {CPU_US:g} us of CPU per chunk at every load", _most(cpu), CPU_US, "us"),
        (
            f"p99 delay at {DELAY_STREAMS} streams within 1 ms of the bare reader's",
            None if more is None else more * 1e3,
            DELAY_S * 1e3,
            "ms more",
        ),
        (f"no failed request at {MANY} streams", many, 0, "failed"),
        (f"at most {KEPT_BYTES:g} bytes per chunk after parsing", kept_bytes, KEPT_BYTES, "bytes"),
        ("raw buffers at most 64 MiB", raw and raw / 2**20, RAW_BYTES / 2**20, "MiB"),
    ]
    judged = [
        (g, _value(v, u), _met(v is not None, v is not None and v <= m)) for g, v, m, u in found
    ]
    for peer in dict.fromkeys(r.peer for r in peers):
        ratios = [x for r in peers if r.peer == peer and (x := _to(r, rows, "kvtop")) is not None]
        title = next(r.title for r in peers if r.peer == peer)
        least = f"{min(ratios):.1f} times, at the least of its loads" if ratios else "not measured"
        met = _met(bool(ratios), bool(ratios) and min(ratios) >= LEANER)
        judged.append((f"{LEANER:g} times leaner than {title}", least, met))
    return judged


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    bound = "≥ " if row.at_least else ""
    times = [None if s is None else s * 1e3 for s in (row.p50_s, row.p99_s)]
    where = f"{row.streams}{' at once' if row.together else ''}"
    return [
        where,
        row.title,
        _number(row.own_us),
        _number(row.stream_us),
        _number(row.whole_us),
        _number(_to(row, rows, "kvtop")),
        _number(_to(row, rows, "floor")),
        *[f"{bound}{_number(t, 2)}" if t is not None else "not available" for t in times],
        "–" if row.failed is None else str(row.failed),
        _number(row.memory_bytes and row.memory_bytes / 2**20, 0),
        _number(row.core_share, 2),
    ]


def _to(row: Row, rows: Sequence[Row], other: str) -> float | None:
    """CPU per chunk over another client's at the same load."""
    for r in rows:
        same = (r.peer, r.streams, r.together) == (other, row.streams, row.together)
        if same and r.cpu_us and row.cpu_us is not None:
            return row.cpu_us / r.cpu_us
    return None


def _most(values: list[float]) -> float | None:
    return max(values, default=None)


def _value(value: float | None, unit: str) -> str:
    return "not measured" if value is None else f"{value:.3g} {unit}"


def _met(known: bool, good: bool) -> str:
    return ("yes" if good else "no") if known else "–"


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"

"""Memory of a chunk after parsing: what stays of an answer once its bytes have been read."""

from __future__ import annotations

import gc
import tracemalloc

from kvtop_lib.bench.null_stream import HEAD, Stream
from kvtop_lib.replay.http1 import take_head
from kvtop_lib.replay.reply import Raw, parse

SMALL, LARGE, ANSWERS = 100, 1100, 20


def bytes_per_chunk() -> float:
    """Bytes that one more chunk leaves behind, by the allocator's count.

    Answers of two lengths are read and parsed, the raw record is kept as a point keeps it, and
    the difference is divided by the difference in chunks: what an answer costs once drops out.
    """
    few, many = (_kept(n) for n in (SMALL, LARGE))
    return (many - few) / (ANSWERS * (LARGE - SMALL))


def _kept(chunks: int) -> int:
    _parsed(0, chunks)  # caches of the parser are no part of it
    gc.collect()
    tracemalloc.start()
    kept = [_parsed(n, chunks) for n in range(ANSWERS)]
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def _parsed(number: int, chunks: int) -> tuple:
    """One answer, read as the client reads it."""
    head, _ = take_head(HEAD)
    stream, raw = Stream(number, chunks, True, True, True), Raw(sent_s=0.0)
    raw.http_status, raw.framing = head.status, head.framing()
    for k in range(chunks):
        raw.stamps.append(0.1 * k)
        raw.buffers.append(stream.chunk(k, k))
    raw.unframe()
    return raw, parse(raw)

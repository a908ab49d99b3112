"""Added delay of chunks: when a client saw them less when the null server sent them.

Both times are CLOCK_MONOTONIC of one host. A client that reports absolute times gets its added
delay; one that reports only gaps between chunks gets its delay above the least delayed chunk of
the same stream, which is a lower bound and marked so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtop_lib.bench.driver import Seen

TAIL = 2
"""Events behind the last chunk (finish, usage) that some clients record like a chunk."""


@dataclass(frozen=True)
class Delays:
    """Seconds over all chunks that could be matched."""

    p50_s: float
    p99_s: float
    chunks: int
    at_least: bool  # a lower bound: times were relative to the stream
    what: str = "every chunk"


def added(
    seen: Sequence[Seen], log: Sequence[dict], relative: bool = False, what: str = "every chunk"
) -> Delays | None:
    """Delays of a client's records against the null server's log.

    Parameters
    ----------
    seen
        Requests of the client. One that saw fewer chunks than were sent, or more than `TAIL`
        more, is left out, since its chunks cannot be told apart.
    log
        ``number`` and ``sent_ns`` per request.
    relative
        Times count from an unknown start of each request.
    """
    sent = {r["number"]: np.asarray(r["sent_ns"], np.int64) / 1e9 for r in log}
    parts = []
    for request in seen:
        times = sent.get(request.number)
        if times is None or not 0 < len(times) <= len(request.recv_s) <= len(times) + TAIL:
            continue
        late = np.asarray(request.recv_s[: len(times)], float) - times
        parts.append(late - late.min() if relative else late)
    if not parts:
        return None
    late = np.concatenate(parts)
    p50, p99 = np.percentile(late, [50, 99])
    return Delays(float(p50), float(p99), len(late), relative, what)


def failed(seen: Sequence[Seen], streams: int) -> int:
    """Requests that did not end well by the client's own account, or are not in it."""
    return streams - sum(s.status == "ok" for s in seen)

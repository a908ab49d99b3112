"""What was drafted, by source and position, and the log that a server keeps of it."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from .config import LOG_VARIABLE
from .estimates import MTP, NGRAM

EVERY_S = 2.0  # between lines of totals


@dataclass
class Counts:
    """Totals since the server started.

    Attributes
    ----------
    proposed, accepted : by source, drafts by position.
    iterations : by width.
    mtp_skipped : iterations in which every request had an n-gram draft, so that no MTP ran.
    heads_caught_up : first drafts worked out late, when width 1 ended.
    lookups, lookup_s : requests looked up, and the time it took with reading their tokens.
    longest_lookup_s : of one iteration.
    """

    depth: int
    proposed: dict[str, list[int]] = field(init=False)
    accepted: dict[str, list[int]] = field(init=False)
    iterations: dict[int, int] = field(default_factory=dict)
    mtp_skipped: int = 0
    heads_caught_up: int = 0
    lookups: int = 0
    lookup_s: float = 0.0
    longest_lookup_s: float = 0.0

    def __post_init__(self) -> None:
        self.proposed = {s: [0] * self.depth for s in (MTP, NGRAM)}
        self.accepted = {s: [0] * self.depth for s in (MTP, NGRAM)}

    def step(self, source: str, proposed: int, accepted: int) -> None:
        """One request's verify step: the first `accepted` of `proposed` drafts held."""
        for position in range(proposed):
            self.proposed[source][position] += 1
            self.accepted[source][position] += position < accepted

    def iteration(self, width: int, all_matched: bool) -> None:
        """One decode iteration."""
        self.iterations[width] = self.iterations.get(width, 0) + 1
        self.mtp_skipped += all_matched

    def looked_up(self, requests: int, seconds: float) -> None:
        """The look-ups of one iteration."""
        self.lookups += requests
        self.lookup_s += seconds
        self.longest_lookup_s = max(self.longest_lookup_s, seconds)

    def to_json(self) -> dict:
        """Plain data."""
        return {
            "proposed": self.proposed,
            "accepted": self.accepted,
            "iterations": {str(w): n for w, n in sorted(self.iterations.items())},
            "mtp_skipped": self.mtp_skipped,
            "heads_caught_up": self.heads_caught_up,
            "lookups": self.lookups,
            "lookup_s": self.lookup_s,
            "longest_lookup_s": self.longest_lookup_s,
        }


class DraftLog:
    """JSON lines in the file that `KVTOP_DRAFT_LOG` names; without it nothing is written.

    ``{"event": "config", ...}`` once, ``{"event": "width", "from", "to", "batch", "why"}`` at
    every change of width, ``{"event": "counts", ...}`` every two seconds of decoding. ``t_s`` is
    the machine's monotonic clock, in seconds.
    """

    def __init__(self, path: str | None = None) -> None:
        name = path if path is not None else os.environ.get(LOG_VARIABLE)
        self._file = None
        if name:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(name, "a", encoding="utf-8", buffering=1 << 16)
        self._next_s = 0.0
        self._width: int | None = None

    def write(self, event: str, **values) -> None:
        """One line, on disk at the next totals."""
        if self._file:
            line = {"event": event, "t_s": round(time.monotonic(), 6), **values}
            self._file.write(json.dumps(line) + "\n")

    def width(self, width: int, batch: int, why: str) -> None:
        """The width of an iteration; a line when it is another than the last one's."""
        if width != self._width:
            self.write("width", **{"from": self._width, "to": width}, batch=batch, why=why)
            self._width = width

    def counts(self, counts: Counts) -> None:
        """Totals, at most every `EVERY_S`."""
        if self._file and (now := time.monotonic()) >= self._next_s:
            self._next_s = now + EVERY_S
            self.write("counts", **counts.to_json())
            self._file.flush()

"""The end of a server's stream of iterations, read while it is written."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

START_BYTES = 262_144  # of a stream that is already long
KEEP_S = 30.0


class Tail:
    """Iterations of the last seconds.

    Parameters
    ----------
    file : JSON lines of the recorder in the server's process: a first line with ``stream``, then
        iterations with ``t_s`` (start, CLOCK_MONOTONIC), ``dur_s``, ``mode`` and ``parts``
        (seconds by name); other lines are passed over. It may not exist yet, and it may be
        replaced when the server starts again.
    """

    def __init__(self, file: Path | str) -> None:
        self.file = Path(file)
        self.header: dict[str, Any] = {}
        self.records: deque[dict[str, Any]] = deque()
        self._id: tuple[int, int] | None = None
        self._at = 0
        self._rest = b""

    def read(self) -> bool:
        """Take in what is new; False when there is no stream."""
        try:
            with self.file.open("rb") as f:
                stat = os.fstat(f.fileno())
                if (stat.st_dev, stat.st_ino) != self._id or stat.st_size < self._at:
                    self._begin(f, stat)
                f.seek(self._at)
                data = self._rest + f.read()
                self._at = f.tell()
        except OSError:
            return False
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._take(line)
        while self.records and self.records[-1]["t_s"] - self.records[0]["t_s"] > KEEP_S:
            self.records.popleft()
        return bool(self.header)

    def _begin(self, f: Any, stat: os.stat_result) -> None:
        self._id, self._at, self._rest, self.header = (stat.st_dev, stat.st_ino), 0, b"", {}
        self.records.clear()
        if stat.st_size > START_BYTES:
            self._take(f.readline())
            f.seek(stat.st_size - START_BYTES)
            f.readline()  # it begins in the middle
            self._at = f.tell()

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            return
        if not isinstance(found, dict):
            return
        if "stream" in found:
            self.header = found
        elif isinstance(found.get("t_s"), float) and isinstance(found.get("dur_s"), float):
            self.records.append(found)

    def summary(self, now_s: float, span_s: float) -> dict[str, Any] | None:
        """Iterations that began in the last seconds; None when there was none.

        Returns
        -------
        dict
            ``iterations``, ``iteration_s`` (mean), ``parts_s`` (mean seconds by part),
            ``other_s`` (outside the parts), ``modes`` (count by mode), ``accept_len`` and
            ``width_tokens`` (over verified requests, None without any).
        """
        rows = [r for r in self.records if now_s - span_s <= r["t_s"] <= now_s]
        if not rows:
            return None
        sums: dict[str, float] = {}
        for row in rows:
            for part, seconds in (row.get("parts") or {}).items():
                sums[part] = sums.get(part, 0.0) + seconds
        n, total_s = len(rows), sum(r["dur_s"] for r in rows)
        modes = [str(r.get("mode")) for r in rows]
        accepted = [a for r in rows for a in r.get("accepted") or ()]
        widths = [r["width"] for r in rows if r.get("accepted") for _ in r["accepted"]]
        return {
            "iterations": n,
            "iteration_s": total_s / n,
            "parts_s": {part: s / n for part, s in sums.items()},
            "other_s": (total_s - sum(sums.values())) / n,
            "modes": {m: modes.count(m) for m in sorted(set(modes))},
            "accept_len": 1 + sum(accepted) / len(accepted) if accepted else None,
            "width_tokens": sum(widths) / len(widths) if widths else None,
        }

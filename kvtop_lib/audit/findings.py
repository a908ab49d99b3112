"""Findings about a published table.

A request that decodes at v tokens per second adds v to the output, so output / per-request speed
is a number of requests: Little's law with the speed of a request in place of its stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvtop_lib.audit.table import QUOTED, Table, read_table
from kvtop_lib.terms import KvtopError

SPEEDS = {
    "decode": "tokens / time from a request's first to its last token; "
    "output / speed is the number of requests that decode",
    "e2e": "tokens / time from sending to a request's end; "
    "output / speed is the number of requests in the system, waiting ones included",
}
SHARE, REQUESTS = 0.05, 1.0
"""Tolerance of Little's law: the larger of 5 % and one request."""

LEVEL = 0.10
"""Loads at which the active number differs by at most 10 % from its mean are one level."""

_CLAIM = re.compile(r"(.+):(cap|batch)=(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Active:
    """Implied number of active requests of an arm at a concurrency."""

    arm: str
    concurrency: int
    active: float
    low: float  # smallest and largest number that the printed digits allow
    high: float

    @property
    def tolerance(self) -> float:
        """Requests by which the closed loop's own number may be missed."""
        return max(SHARE * self.concurrency, REQUESTS)


@dataclass(frozen=True)
class Finding:
    """One thing that the table's own numbers say.

    ``verdict`` is ``supported``, ``not supported``, ``contradicted``, ``not tested`` or ``note``.
    """

    subject: str
    verdict: str
    text: str


def implied(table: Table) -> list[Active]:
    """Implied active requests, by arm and concurrency.

    A lower bound where requests are of equal length and the published speed is their arithmetic
    mean: the true number is larger by the factor mean(v) * mean(1 / v) >= 1. A mean over all of
    the measured time: ramp and drain, when averaged in, lower it too.
    """
    found = []
    for arm in table.arms:
        for c in table.loads(arm):
            total, each = table.cells[arm, c]
            bounds = (total.low / each.high, total.high / each.low)
            found.append(Active(arm, c, total.value / each.value, *bounds))
    return found


def audit(file: Path | str, claims: Sequence[str] = (), speed: str = "decode") -> dict[str, Any]:
    """Audit a published table.

    Parameters
    ----------
    file : CSV (`read_table`).
    claims : ``arm:cap=N`` (at most N requests run at once, and that limits the arm above N
        clients) or ``arm:batch=N`` (N requests run at once from N clients on).
    speed : what per-request speed means, ``decode`` or ``e2e`` (`SPEEDS`).

    Returns
    -------
    dict
        ``file, speed, definition, active`` (rows of `Active`), ``findings`` (rows of `Finding`).

    Raises
    ------
    KvtopError
        As `read_table`, and for a claim or definition that is none.
    """
    if speed not in SPEEDS:
        raise KvtopError(f"speed {speed!r} is unknown; it is one of: {', '.join(SPEEDS)}")
    table = read_table(file)
    active = implied(table)
    by_arm = {arm: [a for a in active if a.arm == arm] for arm in table.arms}
    findings = [f for rows in by_arm.values() for f in _closed_loop(rows, speed)]
    findings += [f for rows in by_arm.values() for f in _level(rows)]
    findings += _quoted(table)
    findings += [_claim(text, by_arm) for text in claims]
    return {
        "file": str(file),
        "speed": speed,
        "definition": SPEEDS[speed],
        "active": [asdict(a) for a in active],
        "findings": [asdict(f) for f in findings],
    }


def _closed_loop(rows: list[Active], speed: str) -> list[Finding]:
    """c clients have at most c requests; with end-to-end speeds, in a steady state, just c."""
    found = []
    for a in rows:
        said = f"{a.arm} at c = {a.concurrency}: {a.active:.1f} active requests"
        if a.low > a.concurrency + a.tolerance:
            text = f"{said} are more than there are clients; per-request speed is something else"
            found.append(Finding(f"{a.arm}, {speed} speed", "contradicted", text))
        elif speed == "e2e" and a.high < a.concurrency - a.tolerance:
            text = (
                f"{said}, but a closed loop keeps {a.concurrency} in the system; the speed is "
                "not of whole requests, or ramp and drain are averaged in"
            )
            found.append(Finding(f"{a.arm}, {speed} speed", "not supported", text))
    return found


def _level(rows: list[Active]) -> list[Finding]:
    """Where more clients stop making more active requests (at least twice as many clients)."""
    for i, first in enumerate(rows):
        rest = rows[i:]
        mean = sum(a.active for a in rest) / len(rest)
        flat = all(abs(a.active - mean) <= LEVEL * mean for a in rest)
        if flat and rest[-1].concurrency >= 2 * first.concurrency:
            low, high = min(a.active for a in rest), max(a.active for a in rest)
            text = (
                f"{first.arm}: {low:.1f} to {high:.1f} active requests from c = "
                f"{first.concurrency} to {rest[-1].concurrency}; further clients add none"
            )
            return [Finding(f"{first.arm}, level", "note", text)]
    return []


def _quoted(table: Table) -> list[Finding]:
    """Quoted changes of the second arm over the first, against the table's own numbers."""
    if len(table.arms) != 2:
        return []
    found, compared = [], 0
    for (what, c), quoted in sorted(table.quoted.items()):
        at = list(QUOTED).index(what)
        pair = [table.cells.get((arm, c)) for arm in table.arms]
        if None in pair:
            continue
        compared += 1
        base, other = (cells[at] for cells in pair)
        low, high = (100 * (r - 1) for r in (other.low / base.high, other.high / base.low))
        if not (low <= quoted.high and quoted.low <= high):
            exact = 100 * (other.value / base.value - 1)
            text = f"quoted {quoted.value:+g} % at c = {c}, the table gives {exact:+.1f} %"
            found.append(Finding(f"{what} change", "contradicted", text))
    if compared and not found:
        text = f"{compared} quoted changes agree with the table, within its rounding"
        found.append(Finding("quoted changes", "supported", text))
    if unknown := len(table.quoted) - compared:
        text = f"{unknown} quoted changes are of loads at which not both arms have a row"
        found.append(Finding("quoted changes", "not tested", text))
    return found


def _claim(text: str, by_arm: dict[str, list[Active]]) -> Finding:
    match = _CLAIM.fullmatch(text.strip())
    if not match or int(match[3]) < 1:
        raise KvtopError(f"claim {text!r} is not of the form ARM:cap=N or ARM:batch=N")
    arm, kind, n = match[1], match[2], int(match[3])
    if arm not in by_arm:
        raise KvtopError(f"claim {text!r}: no arm {arm!r}; arms are: {', '.join(by_arm)}")
    subject, slack = f"{arm}: {kind} of {n}", max(SHARE * n, REQUESTS)
    tested = [
        a for a in by_arm[arm] if a.concurrency > n or (kind == "batch" and a.concurrency == n)
    ]
    if not tested:
        fewest = "more than " if kind == "cap" else "at least "
        return Finding(subject, "not tested", f"no row has {fewest}{n} clients")
    over = [a for a in tested if a.low > n + slack]
    under = [a for a in tested if a.high < n - slack]
    if over:
        a = over[0]
        said = f"{a.active:.1f} active requests at c = {a.concurrency}, more than {n}"
        return Finding(subject, "contradicted", said)
    if not under:
        said = ", ".join(f"{a.active:.1f} at c = {a.concurrency}" for a in tested)
        return Finding(subject, "supported", f"active requests are near {n}: {said}")
    said = ", ".join(f"{a.active:.1f} at c = {a.concurrency}" for a in under)
    a = max(under, key=lambda a: a.active)
    spread = (
        f"; for {n}, the speeds v of requests of equal length would have to differ so much that "
        f"mean(v) x mean(1/v) = {n / a.active:.2f}"
    )
    free = [b for b in by_arm[arm] if b not in tested]  # too few clients for n to bind
    early = [b for b in free if b.high < b.concurrency - b.tolerance]
    already = [b for b in early if abs(b.active - a.active) <= LEVEL * a.active]
    before = (
        f"; already at c = {already[0].concurrency}, where {n} cannot bind, it is "
        f"{already[0].active:.1f}"
        if already
        else ""
    )
    return Finding(subject, "not supported", f"active requests are {said}, not {n}{before}{spread}")

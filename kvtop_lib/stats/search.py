"""The highest arrival rate at which latency targets are still met, by bisection with repeats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvtop_lib.terms import KvtopError


@dataclass(frozen=True)
class RateSearch:
    """Result of a search.

    Attributes
    ----------
    wanted : attainment asked for, share of the requests sent.
    low : highest rate at which every repeat attained it, as at every lower rate that was tried;
        0 when none did. Requests per second.
    high : lowest rate at which no repeat did; ``inf`` when none was found.
    tried : rate -> attainment of its repeats, in the order of measurement.
    """

    wanted: float
    low: float
    high: float
    tried: dict[float, tuple[float, ...]]

    @property
    def rate(self) -> float:
        """Middle of the interval on a log axis; NaN when it is open."""
        open_end = not self.low or math.isinf(self.high)
        return math.nan if open_end else math.sqrt(self.low * self.high)

    @property
    def measurements(self) -> int:
        """Points that were measured."""
        return sum(map(len, self.tried.values()))

    def __str__(self) -> str:
        target = f"attainment of {self.wanted:.0%}"
        if not self.low:
            return f"{target}: not reached at {min(self.tried):.3g} requests/s, the lowest rate"
        if math.isinf(self.high):
            return f"{target}: kept up to {self.low:.3g} requests/s, the highest rate tried"
        return f"{target}: kept up to {self.low:.3g}, lost at {self.high:.3g} requests/s"


def highest_rate(
    attainment: Callable[[float, int], float],
    wanted: float,
    low: float,
    high: float,
    *,
    repeats: int = 3,
    tolerance: float = 0.1,
    tried: dict[float, tuple[float, ...]] | None = None,
) -> RateSearch:
    """Search the highest rate that keeps attainment at or above `wanted`.

    Bisection on a log axis. A rate counts as kept when all `repeats` attain the target and as
    lost when none does; anything between is undecided and stays inside the interval. A rate that
    is kept more often than not is thus taken as lost with probability at most ``2 ** -repeats``,
    and the reverse.

    Parameters
    ----------
    attainment
        Measures a rate (requests/s): ``attainment(rate, repeat)``, repeat from 0; share of the
        requests sent that met every latency target.
    wanted
        For example 0.90, 0.95 or 0.99.
    low, high
        Range that is searched, requests per second.
    repeats
        Measurements per rate.
    tolerance
        The search ends when the next rates to try are nearer than this to the ones known.
    tried
        Rates that were measured before; they are not measured again (a search goes on, or a
        second target uses what the first one has measured). Extended in place.

    Raises
    ------
    KvtopError
        For a range or target that makes no sense, or an attainment that is no share.
    """
    if not (0 < wanted <= 1 and 0 < low < high and math.isfinite(high)):
        raise KvtopError("a rate search needs 0 < low < high and a target share within (0, 1]")
    if repeats < 1 or tolerance <= 0:
        raise KvtopError("a rate search needs at least one repeat and a tolerance above 0")
    tried = {} if tried is None else tried

    def votes(rate: float) -> int:
        """Repeats at a rate that attained the target, measuring those that are missing."""
        while len(have := tried.get(rate, ())) < repeats:
            share = attainment(rate, len(have))
            if not 0 <= share <= 1:
                raise KvtopError(f"attainment at {rate:.3g} requests/s is {share}, not a share")
            tried[rate] = (*have, float(share))
        return sum(share >= wanted for share in tried[rate][:repeats])

    kept, lost = 0.0, math.inf
    if votes(low) == repeats:
        kept = low
    elif votes(low) == 0:
        return RateSearch(wanted, 0.0, low, tried)
    if votes(high) == 0:
        lost = high
    elif votes(high) == repeats:
        return RateSearch(wanted, high, math.inf, tried)
    # the end of what is surely kept, then the start of what is surely lost
    if kept:
        kept, _ = _bisect(kept, high, lambda r: votes(r) == repeats, tolerance)
    within = sorted(r for r in tried if (kept or low) <= r <= high and len(tried[r]) >= repeats)
    bad = next((r for r in within if not votes(r)), high)
    good = max((r for r in within if r < bad), default=low)
    _, first = _bisect(good, bad, lambda r: votes(r) > 0, tolerance)
    return RateSearch(wanted, kept, first if first < high else lost, tried)


def ladder(wanted: float, attained: dict[float, tuple[float, ...]]) -> RateSearch:
    """The same answer from rates that were measured anyway, such as a profile's.

    Parameters
    ----------
    wanted
        Attainment asked for.
    attained
        Rate (requests/s) -> attainment of its repeats.

    Raises
    ------
    KvtopError
        Without a rate, or with a rate that has no repeat.
    """
    if not attained or not all(attained.values()):
        raise KvtopError("a ladder of rates needs at least one measurement per rate")
    low, high, holds = 0.0, math.inf, True
    for rate in sorted(attained):
        votes = sum(share >= wanted for share in attained[rate])
        holds = holds and votes == len(attained[rate])
        low = rate if holds else low
        high = min(high, rate) if not votes else high
    return RateSearch(wanted, low, high, dict(attained))


def _bisect(
    good: float, bad: float, holds: Callable[[float], bool], tolerance: float
) -> tuple[float, float]:
    """Neighbouring rates, the lower of which holds and the upper of which does not."""
    while bad / good > 1 + tolerance:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good, bad

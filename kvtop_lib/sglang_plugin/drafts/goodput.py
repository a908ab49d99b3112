"""Width by goodput: the most expected tokens per predicted second.

For every width the expected tokens of an iteration come from the acceptance by source and
position, the seconds from the iterations of that width at about this batch size. What a width
costs and yields shows only when it runs, so other widths get short bursts now and then, rarer as
long as they change nothing.

Tokens over width are concave (each further draft is less likely to count), and time is nearly
convex (first the weights' transfer, then the rows' multiplication), so their ratio rises to one
peak and falls. Widths beyond a neighbour that is worse than the chosen one are therefore tried
seldom; seldom, not never, because kernels of other hardware have steps.
"""

from collections.abc import Callable, Sequence

from .estimates import MTP, NGRAM, Acceptance, Times

GAIN = 0.02  # a switch must promise this much more
BURST = 3  # iterations of an exploration
FIRST_PERIOD, LAST_PERIOD = 48, 192  # iterations between explorations
NEW_PERIOD = 12  # while a width has never run near this batch size
HOPELESS = 0.9  # beyond widths that promise less, or so little themselves, look seldom
SELDOM = 4  # periods
PROMISING = 1.03  # a burst that raises a width's promise by so much is soon followed by another
SHARE_EVERY = 16  # iterations between exchanges of times among ranks


def bucket(batch: int) -> int:
    """Batch sizes that are treated as one, at most an eighth apart."""
    step = max(1 << max(batch.bit_length() - 4, 0), 1)
    return batch // step * step


class _Place:
    """What is going on at about one batch size."""

    def __init__(self, width: int) -> None:
        self.width = width  # the chosen one
        self.burst = 0  # iterations left of exploring `other`
        self.other = width
        self.age = 0  # iterations here
        self.since = 0  # iterations since the last burst
        self.period = FIRST_PERIOD
        self.promise = 0.0  # of `other` in relation to `width`, before the burst
        self.last: dict[int, int] = {}  # width -> age when it ran last
        self.bursts = 0


class Goodput:
    """The policy ``goodput``.

    Parameters
    ----------
    widths : candidates, rising.
    share : gives every rank what rank 0 passed in, called by all ranks in the same iteration;
        None for a single rank.

    Attributes
    ----------
    reason : ``start``, ``explore``, ``goodput`` or ``keep``: why the last width was chosen.
    """

    def __init__(
        self, widths: Sequence[int], share: Callable[[Sequence], Sequence] | None = None
    ) -> None:
        self.widths = tuple(sorted(widths))
        self.acceptance, self.times = Acceptance(max(self.widths[-1] - 1, 1)), Times(self.widths)
        self.reason = "start"
        self._share, self._waiting, self._choices = share, [], 0
        self._places: dict[int, _Place] = {}

    def accepted(self, source: str, proposed: int, accepted: int) -> None:
        """One request's verify step."""
        self.acceptance.observe(source, proposed, accepted)

    def timed(self, width: int, batch: int, seconds: float) -> None:
        """One iteration; with several ranks it counts after the next exchange."""
        if self._share is None:
            self.times.observe(width, bucket(batch), seconds)
        else:
            self._waiting.append((width, bucket(batch), seconds))

    def rate(self, width: int, batch: int, matched: int) -> float | None:
        """Expected tokens per second; None where the width's time is unknown."""
        seconds = self.times.predict(width, bucket(batch))
        if seconds is None:
            return None
        depth = width - 1
        tokens = (batch - matched) * self.acceptance.tokens(MTP, depth)
        return (tokens + matched * self.acceptance.tokens(NGRAM, depth)) / max(seconds, 1e-9)

    def choose(self, batch: int, matched: int) -> int:
        """Width of the next iteration."""
        self._exchange()
        size = bucket(batch)
        place = self._places.get(size)
        if place is None:
            place = self._places[size] = _Place(self._start(size, batch, matched))
        place.age += 1
        place.since += 1
        width = self._next(place, batch, matched)
        place.last[width] = place.age
        return width

    def _exchange(self) -> None:
        self._choices += 1
        self.acceptance.iteration()
        if self._share is not None and self._choices % SHARE_EVERY == 0:
            for width, size, seconds in self._share(self._waiting):
                self.times.observe(width, size, seconds)
            self._waiting = []

    def _start(self, size: int, batch: int, matched: int) -> int:
        """At a new batch size: what promises most, else what the nearest one has chosen."""
        known = {w: r for w in self.widths if (r := self.rate(w, batch, matched)) is not None}
        if len(known) == len(self.widths):
            return max(known, key=known.__getitem__)
        near = min(self._places, key=lambda s: abs(s - size), default=None)
        return self.widths[0] if near is None else self._places[near].width

    def _next(self, place: _Place, batch: int, matched: int) -> int:
        if place.burst:
            place.burst -= 1
            self.reason = "explore"
            return place.other
        rates = {w: self.rate(w, batch, matched) for w in self.widths}
        best = max(self.widths, key=lambda w: rates[w] or 0.0)
        now = rates[place.width]
        if now and place.since == BURST and place.promise:  # the burst is over and counted
            if (rates[place.other] or 0.0) / now > PROMISING * place.promise:
                place.period = FIRST_PERIOD
        if now and rates[best] > (1 + GAIN) * now:
            place.width, place.period = best, FIRST_PERIOD
            self.reason = "goodput"
            return best
        if other := self._due(place, rates):
            place.other, place.burst, place.since = other, BURST - 1, 0
            place.bursts += 1
            place.promise = (rates[other] or 0.0) / now if now else 0.0
            self.reason = "explore"
            return other
        self.reason = "keep"
        return place.width

    def _due(self, place: _Place, rates: dict[int, float | None]) -> int | None:
        """The width to explore now, if any: an unseen one, else the one not run for longest."""
        unseen = [w for w in self.widths if rates[w] is None and w != place.width]
        if unseen and rates[place.width] is not None:
            if place.since < NEW_PERIOD and place.bursts:
                return None
            if fair := [w for w in unseen if not self._beyond(w, place, rates)]:
                return min(fair, key=lambda w: (place.last.get(w, 0), w))
        if place.since < place.period:
            return None
        idle = {w: place.age - place.last.get(w, 0) for w in self.widths if w != place.width}
        due = [
            w for w in idle if not self._beyond(w, place, rates) or idle[w] >= SELDOM * place.period
        ]
        if not due:
            return None
        place.period = min(2 * place.period, LAST_PERIOD)
        return max(due, key=lambda w: (idle[w], -w))

    def _beyond(self, width: int, place: _Place, rates: dict[int, float | None]) -> bool:
        """Whether this width, or one between it and the chosen one, is known to promise little."""
        low, high = sorted((width, place.width))
        between = [w for w in self.widths if low <= w <= high and w != place.width]
        least = HOPELESS * (rates[place.width] or 0.0)
        return any(rates[w] is not None and rates[w] < least for w in between)

"""Live estimates: how likely a draft is accepted, and how long an iteration takes."""

from collections.abc import Sequence

MTP, NGRAM = "mtp", "ngram"
PRIOR = 0.6  # of an acceptance nobody has seen yet
PRIOR_WEIGHT = 4.0
FADE = 1 - 1 / 256  # of evidence per iteration, seen or not: what was true long ago may not be
LEAST_WEIGHT = 8.0  # decisions that old evidence still counts for
MEMORY_TIMES = 16.0  # iterations remembered per width and batch size
ENOUGH = 3  # iterations whose average is worth more than a comparison elsewhere
FAR = 2.0  # a batch size at most this many times larger says something about another


class Acceptance:
    """P(draft i accepted | draft i - 1 accepted) by source, the oldest evidence fading."""

    def __init__(self, depth: int) -> None:
        start = [PRIOR * PRIOR_WEIGHT, PRIOR_WEIGHT, 0]  # hits, trials, iteration of the last fade
        self._sums = {s: [list(start) for _ in range(depth)] for s in (MTP, NGRAM)}
        self._iteration = 0

    def iteration(self) -> None:
        """Another iteration begins."""
        self._iteration += 1

    def observe(self, source: str, proposed: int, accepted: int) -> None:
        """One request's verify step: `accepted` of `proposed` drafts, a chain."""
        for position in range(min(accepted + 1, proposed)):
            sums = self._faded(source, position)
            sums[0] += position < accepted
            sums[1] += 1

    def probability(self, source: str, position: int) -> float:
        """Of the draft at `position`, from 0."""
        hits, trials, _ = self._sums[source][position]
        return hits / trials

    def tokens(self, source: str, depth: int) -> float:
        """Expected tokens that a request commits per iteration with `depth` drafts."""
        total, chance = 1.0, 1.0
        for position in range(depth):
            chance *= self.probability(source, position)
            total += chance
        return total

    def _faded(self, source: str, position: int) -> list:
        sums = self._sums[source][position]
        hits, trials, then = sums
        if then < self._iteration:
            if trials > LEAST_WEIGHT:
                share = max(FADE ** (self._iteration - then), LEAST_WEIGHT / trials)
                sums[0], sums[1] = hits * share, trials * share
            sums[2] = self._iteration
        return sums


class Times:
    """Seconds per iteration by width and batch size, each a moving average."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._cells: dict[int, dict[int, list[float]]] = {w: {} for w in widths}

    def observe(self, width: int, batch: int, seconds: float) -> None:
        """One iteration; a stray pause counts as at most twice the average."""
        cell = self._cells[width].setdefault(batch, [0.0, 0.0])
        mean, seen = cell
        if seen >= ENOUGH:
            seconds = min(max(seconds, 0.5 * mean), 2 * mean)
        seen = min(seen + 1, MEMORY_TIMES)
        cell[0], cell[1] = mean + (seconds - mean) / seen, seen

    def seen(self, width: int, batch: int) -> int:
        """Iterations behind the average of exactly this cell."""
        return int(self._cells[width].get(batch, (0, 0))[1])

    def predict(self, width: int, batch: int) -> float | None:
        """Expected seconds; None: nothing near.

        Where the width has hardly run: how it compares with the width that has, at the nearest
        batch size that knows both; times of the width alone would carry the batch size's
        difference into the comparison.
        """
        if self.seen(width, batch) >= ENOUGH:
            return self._cells[width][batch][0]
        other = max(self._cells, key=lambda w: self.seen(w, batch))
        if self.seen(other, batch) >= ENOUGH:
            both = [
                b
                for b in self._cells[width]
                if min(self.seen(width, b), self.seen(other, b)) >= ENOUGH and near(b, batch)
            ]
            if not both:
                return None
            b = min(both, key=lambda b: abs(b - batch))
            here, there, its = (
                self._cells[w][x][0] for w, x in ((other, batch), (other, b), (width, b))
            )
            return here * its / there
        return self._between(width, batch)

    def _between(self, width: int, batch: int) -> float | None:
        """Between neighbouring batch sizes in a line."""
        known = self._cells[width]
        below = max((b for b in known if b <= batch and near(b, batch)), default=None)
        above = min((b for b in known if b > batch and near(b, batch)), default=None)
        if below is None or above is None:
            found = below or above
            return None if found is None else known[found][0]
        share = (batch - below) / (above - below)
        return (1 - share) * known[below][0] + share * known[above][0]


def near(a: int, b: int) -> bool:
    """Whether one batch size says something about another."""
    return max(a, b) <= FAR * min(a, b)

"""What the next iteration drafts: who drafts each row, and the width of all. No engine in here."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .config import DraftConfig
from .counts import Counts, DraftLog
from .estimates import MTP, NGRAM
from .lookup import Lookup
from .policies import make


@dataclass(frozen=True)
class Plan:
    """One decode iteration.

    Attributes
    ----------
    width : tokens verified per request.
    drafts : by row, `width - 1` tokens from an n-gram match, or none where MTP drafts.
    """

    width: int
    drafts: tuple[tuple[int, ...], ...]

    @property
    def matched(self) -> list[int]:
        """Rows with an n-gram draft."""
        return [row for row, tokens in enumerate(self.drafts) if tokens]

    @property
    def sources(self) -> list[str]:
        """Who drafts, by row."""
        if self.width == 1:
            return ["none"] * len(self.drafts)
        return [NGRAM if tokens else MTP for tokens in self.drafts]

    @property
    def all_matched(self) -> bool:
        """Whether no row needs MTP."""
        return all(self.drafts)

    @property
    def needs_mtp(self) -> bool:
        """Whether MTP drafts in any row."""
        return self.width > 1 and not self.all_matched


class Director:
    """Plans every decode iteration and learns from it.

    Results come back in the order of the plans; with overlapped scheduling one iteration late.

    Parameters
    ----------
    config : what was asked for.
    share : as in `policies.make`.
    clock : seconds, monotonic.
    """

    def __init__(
        self,
        config: DraftConfig,
        share: Callable[[Sequence], Sequence] | None = None,
        log: DraftLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.policy = make(config, share)
        self.counts = Counts(config.widths[-1] - 1)
        self._depth = config.widths[-1] - 1
        self._lookup = Lookup(config.min_match) if config.ngram else None
        self._log, self._clock = log, clock
        self._running: tuple[float, int, int] | None = None  # start, width, batch
        self._plans: deque[Plan] = deque(maxlen=4)

    def plan(self, requests: Sequence) -> Plan:
        """The iteration that starts now."""
        now, batch = self._clock(), len(requests)
        if self._running:
            started, width, size = self._running
            self.policy.timed(width, size, now - started)
        found: list[list[int]] = [[]] * batch
        if self._lookup is not None:
            found = self._lookup.propose(requests, self._depth)
            self.counts.looked_up(batch, self._clock() - now)
        width = self.policy.choose(batch, sum(map(bool, found)))
        plan = Plan(width, tuple(tuple(tokens[: width - 1]) for tokens in found))
        self.counts.iteration(width, width > 1 and not plan.needs_mtp)
        if self._log:
            self._log.width(width, batch, self.policy.reason)
            self._log.counts(self.counts)
        self._plans.append(plan)
        self._running = (now, width, batch)
        return plan

    def caught_up(self, requests: int) -> None:
        """Heads of so many requests ran before the planned iteration: its time begins now.

        What they cost was owed to iterations of width 1 and says nothing about this width.
        """
        if requests and self._running:
            self._running = (self._clock(), *self._running[1:])
            self.counts.heads_caught_up += requests

    def interrupted(self) -> None:
        """Something other than a decode iteration follows: the time of the last one is unknown."""
        self._running = None

    def verified(self, accepted: Sequence[int]) -> None:
        """Accepted drafts by row of the oldest iteration whose result is out."""
        plan = self._plans.popleft() if self._plans else None
        if plan is None or len(plan.drafts) != len(accepted):
            self._plans.clear()  # out of step: learn nothing from it
            return
        proposed = plan.width - 1
        for tokens, held in zip(plan.drafts, accepted, strict=True):
            source = NGRAM if tokens else MTP
            self.counts.step(source, proposed, held)
            self.policy.accepted(source, proposed, held)

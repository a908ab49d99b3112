"""Policies: the width of the next iteration, from the number of running requests.

A policy knows no engine. `choose` must give the same answer on every rank of a tensor-parallel
server: it may depend on what all ranks see alike (batches, matches, acceptance), and on times
only after they were shared.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .config import DraftConfig
from .goodput import Goodput


class Policy(Protocol):
    """What the worker asks for and tells."""

    reason: str  # of the last choice

    def choose(self, batch: int, matched: int) -> int:
        """Width for `batch` running requests, `matched` of which have an n-gram draft."""

    def accepted(self, source: str, proposed: int, accepted: int) -> None:
        """One request's verify step."""

    def timed(self, width: int, batch: int, seconds: float) -> None:
        """One iteration."""


class Table:
    """A width by the number of running requests; a fixed width is a table of one line."""

    def __init__(self, widths_from: dict[int, int], reason: str) -> None:
        self._lines = sorted(widths_from.items())
        self.reason = reason

    def choose(self, batch: int, matched: int) -> int:
        """Width of the last line at or below `batch`; below all lines, of the first."""
        width = self._lines[0][1]
        for start, other in self._lines:
            if start <= batch:
                width = other
        return width

    def accepted(self, source: str, proposed: int, accepted: int) -> None:
        """Nothing is learnt."""

    def timed(self, width: int, batch: int, seconds: float) -> None:
        """Nothing is learnt."""


def make(config: DraftConfig, share: Callable[[Sequence], Sequence] | None = None) -> Policy:
    """The policy of a configuration.

    Parameters
    ----------
    share : gives every rank what rank 0 passed in; None for a single rank.
    """
    if config.fixed is not None:
        return Table({1: config.fixed}, "fixed")
    if config.policy == "table":
        return Table(config.table, "table")
    return Goodput(config.widths, share)

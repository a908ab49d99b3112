"""Which sessions a point may play: every prompt at most once per block.

A pool is made once per block, from the trace, the block's loads and a seed. It shuffles the
sessions and cuts them into one disjoint slice per load. Neither the arm nor the order of the
points nor their speed has a part in it, so every arm gets the same sessions in the same order
at a load: a slower arm only gets less far into its slice. Slices grow like ``1.5 + sqrt(c)``
(turnover grows slower than c, since lanes share the machine); the loads' shares can be given
instead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from kvtop_lib.terms import KvtopError


class PoolExhausted(KvtopError):
    """A point has used up its slice; playing a session twice would hit the prefix cache."""


def default_share(c: int) -> float:
    """Relative number of sessions that a closed loop of ``c`` lanes is given."""
    return 1.5 + math.sqrt(c)


class SessionSlice:
    """The sessions of one load, handed out once each."""

    def __init__(self, sessions: Sequence, load: int) -> None:
        self._sessions, self.load, self.taken = tuple(sessions), load, 0

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self):
        """The next session.

        Raises
        ------
        PoolExhausted
            When all sessions of the slice have been handed out.
        """
        if self.taken >= len(self._sessions):
            raise PoolExhausted(
                f"all {len(self)} sessions of load c{self.load} were used before the window ended; "
                "give a trace with more sessions, fewer loads, or a shorter window"
            )
        self.taken += 1
        return self._sessions[self.taken - 1]


class SessionPool:
    """Sessions of a trace, cut into one disjoint slice per load.

    Parameters
    ----------
    sessions
        Sessions of the trace (`kvtop_lib.trace.Session` or alike, with unique ``id``).
    loads
        Lanes of every point of the block.
    seed
        Decides the order; the same for every arm of a block.
    shares
        Relative number of sessions per load; `default_share` when not given.

    Raises
    ------
    KvtopError
        When ids repeat, or a load would get fewer sessions than it has lanes.
    """

    def __init__(
        self,
        sessions: Sequence,
        loads: Sequence[int],
        seed: int,
        shares: Mapping[int, float] | None = None,
    ) -> None:
        if len({s.id for s in sessions}) != len(sessions):
            raise KvtopError("session ids repeat in the trace; give every session its own id")
        order = sorted(sessions, key=lambda s: s.id)
        random.Random(f"kvtop-pool-{seed}").shuffle(order)
        loads = sorted(set(loads))
        weight = {c: shares[c] if shares else default_share(c) for c in loads}
        total, done, edge, self._slices = sum(weight.values()), 0.0, 0, {}
        for c in loads:
            done += weight[c]
            start, edge = edge, round(len(order) * done / total)
            self._slices[c] = SessionSlice(order[start:edge], c)
        self._check(total, weight, len(order))

    def _check(self, total: float, weight: Mapping[int, float], n: int) -> None:
        for c, part in self._slices.items():
            if len(part) < c:
                need = math.ceil(
                    max((c + 1) * total / w for c, w in weight.items())
                )  # + 1: rounding
                raise KvtopError(
                    f"load c{c} gets {len(part)} of the trace's {n} sessions, but its lanes need "
                    f"at least one each; give at least {need} sessions or fewer loads"
                )

    def __iter__(self) -> Iterator[SessionSlice]:
        return iter(self._slices.values())

    def slice(self, load: int) -> SessionSlice:
        """Slice of a load; taking from it is remembered, so a point cannot be replayed on it."""
        if load not in self._slices:
            raise KvtopError(f"the pool was made for loads {sorted(self._slices)}, not for c{load}")
        return self._slices[load]

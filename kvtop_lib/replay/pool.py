"""Which sessions a point may play: every prompt at most once per block.

A pool is made once per block, from the trace, the block's loads and a seed. It shuffles the
sessions and cuts them into one disjoint slice per load. Neither the arm nor the order of the
points nor their speed has a part in it, so every arm gets the same sessions in the same order
at a load: a slower arm only gets less far into its slice. Slices grow like ``1.5 + sqrt(c)``
(turnover grows slower than c, since lanes share the machine); the loads' shares can be given
instead. An open load gets exactly as many sessions as it starts, with their times, before the
lanes share the rest; one with the trace's own times gets a run of sessions in recorded order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from kvtop_lib.params.shape import Load, OpenLoad, load_name
from kvtop_lib.replay.arrivals import MOST, arrival_times, session_stamp, trace_times
from kvtop_lib.terms import KvtopError


class PoolExhausted(KvtopError):
    """A point has used up its slice; playing a session twice would hit the prefix cache."""


def default_share(c: int) -> float:
    """Relative number of sessions that a closed loop of ``c`` lanes is given."""
    return 1.5 + math.sqrt(c)


class SessionSlice:
    """The sessions of one load, handed out once each; ``times_s`` are the starts of an open one."""

    def __init__(self, sessions: Sequence, load: Load, times_s: Sequence[float] = ()) -> None:
        self._sessions, self.load, self.taken = tuple(sessions), load, 0
        self.times_s = tuple(times_s)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def name(self) -> str:
        """Name of the load."""
        return load_name(self.load)

    @property
    def left(self) -> int:
        """Sessions that stay to be taken."""
        return len(self) - self.taken

    def coming(self, n: int) -> tuple:
        """The next ``n`` sessions, or fewer, which stay to be taken."""
        return self._sessions[self.taken : self.taken + n]

    def take(self):
        """The next session.

        Raises
        ------
        PoolExhausted
            When all sessions of the slice have been handed out.
        """
        if self.taken >= len(self._sessions):
            raise PoolExhausted(
                f"all {len(self)} sessions of load {self.name} were used before the window ended; "
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
        Load of every point of the block: lanes, or an open load.
    seed
        Decides the order, and the times of open loads; the same for every arm of a block.
    shares
        Relative number of sessions per number of lanes; `default_share` when not given.
    until_s
        End of sending of a point (``Plan.w1_s``), for open loads.

    Raises
    ------
    KvtopError
        When ids repeat, a load would get fewer sessions than it has lanes or starts, or the
        trace's timestamps end before the point does.
    """

    def __init__(
        self,
        sessions: Sequence,
        loads: Sequence[Load],
        seed: int,
        shares: Mapping[int, float] | None = None,
        until_s: float | None = None,
    ) -> None:
        if not sessions:
            raise KvtopError("the trace holds no session; give one that does")
        if len({s.id for s in sessions}) != len(sessions):
            raise KvtopError("session ids repeat in the trace; give every session its own id")
        self._seed, self._until_s, self._given, self._slices = seed, until_s, len(sessions), {}
        order = sorted(sessions, key=lambda s: s.id)
        open_loads = sorted((x for x in set(loads) if isinstance(x, OpenLoad)), key=load_name)
        if recorded := [x for x in open_loads if x.arrivals == "trace"]:
            order.sort(key=session_stamp)
            for load in recorded:
                order = self._cut_recorded(load, order)
        random.Random(f"kvtop-pool-{seed}").shuffle(order)
        for load in open_loads:
            if load.arrivals != "trace":
                order = self._cut_open(load, order)
        self._cut_lanes(sorted(x for x in set(loads) if isinstance(x, int)), order, shares)

    def _end_s(self, load: OpenLoad) -> float:
        if self._until_s is None:
            raise KvtopError(f"load {load.name} is open; say how long it sends (until_s)")
        return self._until_s

    def _cut_recorded(self, load: OpenLoad, order: list) -> list:
        end_s = self._end_s(load)
        times_s = trace_times([session_stamp(s) for s in order], load, self._seed) if order else []
        n = sum(t < end_s for t in times_s)
        if n == len(order):
            reach_s = times_s[-1] if times_s else 0.0
            raise KvtopError(
                f"load {load.name}: the timestamps of the trace's {len(order)} free sessions end "
                f"{reach_s:.0f} s after the first, and the point sends for {end_s:.0f} s; stretch "
                "them (time_scale), shorten the window or give a longer trace"
            )
        self._slices[load] = SessionSlice(order[:n], load, times_s[:n])
        return order[n:]

    def _cut_open(self, load: OpenLoad, order: list) -> list:
        times_s = arrival_times(load, self._seed, self._end_s(load))
        if len(times_s) > len(order):
            more = "at least " if len(times_s) == MOST else ""
            raise KvtopError(
                f"load {load.name} starts {more}{len(times_s)} sessions in "
                f"{self._end_s(load):.0f} s and {len(order)} of the trace's {self._given} are "
                "free; give more sessions, a lower rate or a shorter window"
            )
        self._slices[load] = SessionSlice(order[: len(times_s)], load, times_s)
        return order[len(times_s) :]

    def _cut_lanes(self, loads: list[int], order: list, shares: Mapping | None) -> None:
        weight = {c: shares[c] if shares else default_share(c) for c in loads}
        total, done, edge = sum(weight.values()), 0.0, 0
        for c in loads:
            done += weight[c]
            start, edge = edge, round(len(order) * done / total)
            self._slices[c] = SessionSlice(order[start:edge], c)
        for c in loads:
            if len(part := self._slices[c]) < c:
                need = math.ceil(
                    max((c + 1) * total / w for c, w in weight.items())
                )  # + 1: rounding
                need += self._given - len(order)  # which open loads have taken
                raise KvtopError(
                    f"load c{c} gets {len(part)} of the trace's {self._given} sessions, but its "
                    f"lanes need at least one each; give at least {need} sessions or fewer loads"
                )

    def __iter__(self) -> Iterator[SessionSlice]:
        return iter(self._slices.values())

    def slice(self, load: Load) -> SessionSlice:
        """Slice of a load; taking from it is remembered, so a point cannot be replayed on it."""
        if load not in self._slices:
            known = ", ".join(map(load_name, self._slices))
            raise KvtopError(f"the pool was made for loads {known}, not for {load_name(load)}")
        return self._slices[load]

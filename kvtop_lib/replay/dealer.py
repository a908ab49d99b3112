"""Who plays what: lanes, arrivals and sessions, dealt to the client's processes."""

from __future__ import annotations

import math
from typing import Protocol

from kvtop_lib.replay.lanes import Place
from kvtop_lib.replay.pool import PoolExhausted, SessionSlice
from kvtop_lib.replay.request import clock
from kvtop_lib.replay.traffic import Traffic
from kvtop_lib.trace.model import Session


class Hand(Protocol):
    """One process: a `kvtop_lib.replay.share.Share`, or a `Remote` that stands for one."""

    lanes: int
    quota: int
    stocked: int

    def play(self, place: Place) -> None:
        """Play from a place on."""

    def put(self, session: Session) -> None:
        """Lay a session ready."""

    def allow(self, lanes: int) -> None:
        """Keep so many lanes."""


class Dealer:
    """Deals for all processes, so that no session is played twice and none left out.

    Attributes
    ----------
    hands : the processes.
    from_s : when the first arrival is due that those that joined last share in; 0 for lanes.
    """

    def __init__(self, traffic: Traffic, sessions: SessionSlice) -> None:
        self._traffic, self._sessions = traffic, sessions
        self.hands: list[Hand] = []
        self.from_s, self._dealt = 0.0, 0

    @property
    def most(self) -> int:
        """Processes that there is something to play for."""
        return len(self._sessions) if self._traffic.open else self._sessions.load

    @property
    def settled(self) -> bool:
        """Every process has the lanes, or gets the arrivals, that it is to have."""
        if self._traffic.open:
            return clock() >= self.from_s
        return all(h.lanes <= h.quota for h in self.hands)

    @property
    def next_s(self) -> float:
        """When the next arrival to be dealt is due, infinity when there is none; 0 for lanes."""
        if not self._traffic.open:
            return 0.0
        times_s = self._sessions.times_s
        if self._dealt >= len(times_s):
            return math.inf
        return self._traffic.start_s + times_s[self._dealt]

    def join(self, *hands: Hand) -> None:
        """Take processes in; lanes are shared out anew, the first ones take what is left over.

        Lanes that are above a process's number move at the end of a turn; arrivals alternate
        from the next one on that is dealt.
        """
        self.hands.extend(hands)
        self.from_s = self.next_s
        if not self._traffic.open:
            each, more = divmod(self._sessions.load, len(self.hands))
            for i, hand in enumerate(self.hands):
                hand.allow(each + (i < more))

    def deal(self, place: Place) -> None:
        """Give a lane to the process that has most room for it, or an arrival to the next one."""
        if self._traffic.open:
            self._dealt = place.lane + 1
            return self.hands[place.lane % len(self.hands)].play(place)
        hand = min(self.hands, key=lambda h: h.lanes / h.quota)
        hand.play(place)
        return self.feed(hand)

    def feed(self, hand: Hand) -> None:
        """Lay as many sessions ready for a process as it has lanes.

        One of several gets the last sessions of the slice only when a lane of it waits for them,
        so that none lies with one process while another finds the slice used up.
        """
        kept = self._sessions.load if len(self.hands) > 1 else 0
        while hand.stocked < 0 or (hand.stocked < hand.lanes and self._sessions.left > kept):
            try:
                hand.put(self._sessions.take())
            except PoolExhausted as e:
                return self._traffic.halt("exhausted", str(e))
        return None

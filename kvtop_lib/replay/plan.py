"""The time plan of a point and how its requests are made."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Literal

from kvtop_lib.terms import KvtopError, Phase


@dataclass(frozen=True)
class Plan:
    """Phases of a point, in seconds from its start, and the pace of its lanes.

    ``timeout_s`` is the longest silence that one request may show: no byte from the server for
    that long, before or after the first token, ends it as ``timeout``. ``stagger_s`` and
    ``start`` are those of lanes; an open loop starts every session when it arrives.
    """

    burn_in_s: float
    warmup_s: float
    window_s: float
    drain_s: float
    timeout_s: float
    stagger_s: float = 1.0  # lanes start spread over this time, never past the burn-in
    think_factor: float = 0.0  # recorded think time times this; 0: none
    think_cap_s: float | None = None  # longest think time that is replayed
    start: Literal["first_turn", "random_turn"] = "first_turn"  # of a lane's first session
    cancel_share: float = 0.0  # of the requests, aborted by the client on purpose
    cancel_within_s: float = 2.0  # an aborted one runs for a random part of this time
    output: Literal["natural", "recorded"] = "natural"  # natural stop, or recorded length
    max_output_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("burn_in_s", "warmup_s", "drain_s", "stagger_s", "think_factor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise KvtopError(
                    f"{name} is {getattr(self, name)}, it must be a finite number from 0 on"
                )
        if self.start not in ("first_turn", "random_turn"):
            raise KvtopError(f"start is {self.start!r}, it must be first_turn or random_turn")
        if not 0 <= self.cancel_share <= 1:
            raise KvtopError(f"cancel_share is {self.cancel_share}, it must be from 0 to 1")
        if self.think_cap_s is not None and not self.think_cap_s > 0:
            raise KvtopError(f"think_cap_s is {self.think_cap_s}, it must be more than 0")
        for name in ("window_s", "timeout_s", "max_output_tokens", "cancel_within_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvtopError(
                    f"{name} is {getattr(self, name)}, it must be a finite number above 0"
                )

    @classmethod
    def of(cls, profile, workload) -> Plan:
        """Plan of a profile's timing and a workload's pace (``kvtop_lib.params`` objects)."""
        timing = ("burn_in_s", "warmup_s", "window_s", "drain_s", "timeout_s")
        pace = (
            "stagger_s think_factor think_cap_s start output max_output_tokens cancel_share "
            "cancel_within_s"
        ).split()
        return cls(
            **{k: getattr(profile, k) for k in timing}, **{k: getattr(workload, k) for k in pace}
        )

    @property
    def w0_s(self) -> float:
        """Start of the window, in seconds from the start of the point."""
        return self.burn_in_s + self.warmup_s

    @property
    def w1_s(self) -> float:
        """End of the window and of sending."""
        return self.w0_s + self.window_s

    def phase(self, since_start_s: float) -> Phase:
        """Phase of a request by the time it was sent."""
        if since_start_s < self.burn_in_s:
            return "burn_in"
        if since_start_s < self.w0_s:
            return "warmup"
        return "window" if since_start_s < self.w1_s else "drain"

    def think_s(self, recorded_s: float) -> float:
        """Pause before a turn: the recorded one, scaled and capped."""
        scaled = recorded_s * self.think_factor
        return scaled if self.think_cap_s is None else min(scaled, self.think_cap_s)

    def cancel_after_s(self, seed: int, session: str, turn: int) -> float | None:
        """Seconds after which a request is aborted on purpose; None for most.

        Drawn from seed, session and turn, so that every arm aborts the same requests after the
        same time.
        """
        rng = random.Random(f"kvtop-cancel-{seed}-{session}-{turn}")
        chosen = rng.random() < self.cancel_share
        return rng.random() * self.cancel_within_s if chosen else None

    def as_dict(self) -> dict:
        """All fields, for the records."""
        return asdict(self)

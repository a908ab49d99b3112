"""The time plan of a point and how its requests are made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from kvtop_lib.terms import KvtopError, Phase


@dataclass(frozen=True)
class Plan:
    """Phases of a point, in seconds from its start, and the pace of its lanes.

    ``timeout_s`` is the longest silence that one request may show: no byte from the server for
    that long, before or after the first token, ends it as ``timeout``.
    """

    burn_in_s: float
    warmup_s: float
    window_s: float
    drain_s: float
    timeout_s: float
    stagger_s: float = 1.0  # lanes start spread over this time, never past the burn-in
    think_factor: float = 0.0  # recorded think time times this; 0: none
    output: Literal["natural", "recorded"] = "natural"  # natural stop, or recorded length
    max_output_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("burn_in_s", "warmup_s", "drain_s", "stagger_s", "think_factor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise KvtopError(f"{name} is {getattr(self, name)}, it must be 0 or more")
        for name in ("window_s", "timeout_s", "max_output_tokens"):
            if not 0 < getattr(self, name) < math.inf:
                raise KvtopError(f"{name} is {getattr(self, name)}, it must be more than 0")

    @classmethod
    def of(cls, profile, workload) -> Plan:
        """Plan of a profile's timing and a workload's pace (``kvtop_lib.params`` objects)."""
        timing = ("burn_in_s", "warmup_s", "window_s", "drain_s", "timeout_s")
        pace = ("stagger_s", "think_factor", "output", "max_output_tokens")
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

    def as_dict(self) -> dict:
        """All fields, for the records."""
        return asdict(self)

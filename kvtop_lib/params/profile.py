"""A profile: which arms are measured at which loads, for how long."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from kvtop_lib.params.base import ParamsFile
from kvtop_lib.params.shape import Load, LoadField, load_name, parse_load

LATENCY_TARGETS = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies of single requests that a target may limit."""


class Profile(ParamsFile):
    """One run profile (``params/profiles/<id>.yaml``)."""

    model: str
    arms: list[str] = Field(min_length=1)
    workload: str
    loads: list[LoadField] = Field(min_length=1)  # lanes (8), rates ('r0.50'), see params.shape
    only: dict[str, list[LoadField]] = {}  # arms that are measured at some of the loads alone
    blocks: int = Field(default=1, ge=1)  # server lifetimes per arm; the unit of repetition
    seed: int = 1
    burn_in_s: float = Field(ge=0)
    warmup_s: float = Field(ge=0)
    window_s: float = Field(gt=0)
    windows: dict[str, float] = {}  # seconds by load (32 or 'c32') where it is not `window_s`
    drain_s: float = Field(ge=0)
    timeout_s: float = Field(gt=0)  # of one request
    lossless_prompts: int = Field(default=20, ge=0)
    targets: dict[str, float] = {}  # latency targets of a request: limits in s by `LATENCY_TARGETS`

    def loads_of(self, arm: str) -> list[Load]:
        """Loads at which an arm is measured, in the profile's order."""
        return [x for x in self.loads if x in self.only.get(arm, self.loads)]

    def window_of(self, load: Load) -> float:
        """Length of the window at a load, in seconds."""
        return self.windows.get(load_name(load), self.window_s)

    @field_validator("windows", mode="before")
    @classmethod
    def _by_name(cls, windows: Any) -> Any:
        if not isinstance(windows, dict):
            return windows
        lanes = {load: int(load) for load in windows if str(load).isdigit()}  # text in JSON
        return {load_name(parse_load(lanes.get(x, x))): seconds for x, seconds in windows.items()}

    @field_validator("targets")
    @classmethod
    def _known_targets(cls, targets: dict[str, float]) -> dict[str, float]:
        for name, limit in targets.items():
            if name not in LATENCY_TARGETS:
                known = ", ".join(LATENCY_TARGETS)
                raise ValueError(f"no latency target on {name!r}; known: {known}")
            if limit <= 0:
                raise ValueError(f"the limit of {name} must be seconds above 0, not {limit:g}")
        return targets

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        for name in ("arms", "loads"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name} names one thing twice: {values}")
        if "baseline" not in self.arms:
            raise ValueError("arms must contain 'baseline': every ratio is formed against it")
        for arm, loads in self.only.items():
            if arm == "baseline" or arm not in self.arms:
                raise ValueError(f"only: {arm!r} is not an arm of this profile to be restricted")
            if not loads or [x for x in loads if x not in self.loads]:
                raise ValueError(f"only: {arm!r} needs some of the profile's loads")
        names = [load_name(x) for x in self.loads]
        for name, seconds in self.windows.items():
            if name not in names:
                raise ValueError(f"windows: {name} is not one of the loads, {', '.join(names)}")
            if seconds <= 0:
                raise ValueError(f"windows: {name} must be seconds above 0, not {seconds:g}")
        return self

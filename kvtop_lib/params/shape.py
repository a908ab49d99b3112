"""The load of a point: lanes of a closed loop, or arrivals of an open one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

Arrivals = Literal["poisson", "gamma", "constant", "steps", "trace"]
Positive = Annotated[float, Field(gt=0)]
LEAST, GREATEST = 1e-6, 1e6  # beyond, names run together and gamma fails


def _limited(value: float) -> float:
    if not LEAST <= value <= GREATEST:
        said = f"Input should be from {LEAST:f} to {GREATEST:,.0f}"
        raise PydanticCustomError("limits", said)
    return value


Limited = Annotated[float, AfterValidator(_limited)]


class OpenLoad(BaseModel):
    """An open loop: sessions start at times that do not wait for the server.

    ``rate`` is session starts per second (with one turn per session: requests per second).
    ``burstiness`` is the shape of the gamma-distributed intervals, as other clients name it: 1
    is Poisson, less is burstier, the CV of the intervals is ``1 / sqrt(burstiness)``. Rates and
    burstiness are from 0.000001 to 1,000,000.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    arrivals: Arrivals = "poisson"
    rate: Limited | None = None
    burstiness: Limited | None = None  # gamma only
    steps: tuple[tuple[Limited, Positive], ...] | None = None  # (rate, seconds); the last stays
    time_scale: Positive | None = None  # trace only: recorded intervals times this, default 1
    jitter_s: float | None = Field(default=None, ge=0)  # trace only: spreads equal stamps

    @model_validator(mode="after")
    def _fits_its_arrivals(self) -> Self:
        kind = self.arrivals
        needed = {"gamma": ("rate", "burstiness"), "steps": ("steps",), "trace": ()}
        needs = needed.get(kind, ("rate",))
        may = {*needs, *(("time_scale", "jitter_s") if kind == "trace" else ())}
        names = [f for f in type(self).model_fields if f != "arrivals"]
        if missing := [n for n in needs if not getattr(self, n)]:
            raise ValueError(f"{kind} arrivals need {' and '.join(missing)}")
        if extra := [n for n in names if n not in may and getattr(self, n) is not None]:
            raise ValueError(f"{kind} arrivals do not take {' and '.join(extra)}")
        return self

    @property
    def name(self) -> str:
        """Name of the load: ``r0.50``, ``r0.50-gamma0.25``, ``steps-0.50x30-1.00x30``,
        ``trace-x0.5``."""
        if self.arrivals == "steps":
            return "steps-" + "-".join(f"{_two(r)}x{s:g}" for r, s in self.steps)
        if self.arrivals == "trace":
            jitter = f"-j{self.jitter_s:g}" if self.jitter_s else ""
            return f"trace-x{self.time_scale or 1:g}{jitter}"
        kind = "" if self.arrivals == "poisson" else f"-{self.arrivals}"
        return f"r{_two(self.rate)}{kind}{f'{self.burstiness:g}' if self.burstiness else ''}"


def _two(rate: float) -> str:
    """At least two decimals, and all that the rate has."""
    short = f"{rate:.2f}"
    return short if float(short) == rate else f"{rate:.12f}".rstrip("0")


Load = int | OpenLoad


def load_name(load: Load) -> str:
    """Name of a load in records: ``c8``, ``r0.50``, ..."""
    return load.name if isinstance(load, OpenLoad) else f"c{load}"


_NAME = re.compile(r"(?:c(\d+)|r(\d+(?:\.\d+)?)(?:-(constant|gamma)(\d*\.?\d+)?)?)")


def parse_load(value: Any) -> Load:
    """A load from what a parameter file says: lanes, a name, or the fields of `OpenLoad`.

    Raises
    ------
    ValueError
        When it is none of these; the text says why.
    """
    if isinstance(value, OpenLoad):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"a closed loop has 1 lane or more, not {value}")
        return value
    if isinstance(value, dict):
        return _open(value)
    if isinstance(value, str) and (found := _NAME.fullmatch(value)):
        lanes, rate, kind, shape = found.groups()
        if lanes:
            return parse_load(int(lanes))
        return _open({"rate": rate, "arrivals": kind or "poisson", "burstiness": shape})
    raise ValueError(
        f"{value!r} is no load; give lanes (8), a rate ('r0.50', 'r0.50-constant', "
        "'r0.50-gamma0.25') or {rate: 0.5, arrivals: ...}"
    )


def _open(fields: dict) -> OpenLoad:
    try:
        return OpenLoad(**fields)
    except (ValidationError, TypeError) as e:
        errors = e.errors() if isinstance(e, ValidationError) else [{"loc": (), "msg": str(e)}]
        said = "; ".join(
            ": ".join([*(str(p) for p in x["loc"]), x["msg"].removeprefix("Value error, ")])
            for x in errors
        )
        raise ValueError(f"{fields} is no load: {said}") from None


LoadField = Annotated[Any, BeforeValidator(parse_load)]
"""A `Load` in a parameter file."""

"""A workload: which trace is replayed, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvtop_lib.params.base import ParamsFile


class Workload(ParamsFile):
    """One workload (``params/workloads/<id>.yaml``)."""

    trace: str  # "builtin:agent" or a file
    output: Literal["natural", "recorded"] = "natural"  # natural stop, or recorded length
    max_output_tokens: int = Field(ge=1)
    start: Literal["first_turn"] = "first_turn"
    stagger_s: float = Field(default=1.0, ge=0)  # lanes start spread over this time
    think_factor: float = Field(default=0.0, ge=0)  # recorded think time times this

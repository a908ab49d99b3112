"""A workload: which trace is replayed, and how."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvtop_lib.params.base import ParamsFile


class FixedShape(BaseModel):
    """Sessions of one request each, all of one size, made of real text (`kvtop_lib.replay.fixed`).

    ``input_tokens`` is the whole prompt as the server counts it, chat template included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    sessions: int = Field(default=1000, ge=1)  # made per block; a prompt is used once in it


class Workload(ParamsFile):
    """One workload (``params/workloads/<id>.yaml``)."""

    trace: str = "builtin:agent"  # or a file; with `fixed` only the greedy probes come from it
    fixed: FixedShape | None = None  # replay these sessions instead of the trace's
    output: Literal["natural", "recorded"] = "natural"  # natural stop, or recorded length
    max_output_tokens: int = Field(ge=1)
    start: Literal["first_turn", "random_turn"] = "first_turn"  # of a lane's first session
    stagger_s: float = Field(default=1.0, ge=0)  # lanes start spread over this time
    think_factor: float = Field(default=0.0, ge=0)  # recorded think time times this
    think_cap_s: float | None = Field(default=None, gt=0)  # longest think time that is replayed
    max_context_tokens: int | None = Field(default=None, ge=1)  # leading turns that fit are kept
    scale_tokens: float | None = Field(default=None, gt=0)  # every length of the trace times this
    cancel_share: float = Field(default=0.0, ge=0, le=1)  # of the requests, aborted on purpose
    cancel_within_s: float = Field(default=2.0, gt=0)  # after a random part of this time

    @model_validator(mode="after")
    def _fixed_decides(self) -> Self:
        if self.fixed and self.output != "recorded":
            raise ValueError("fixed: sizes the output, set output: recorded beside it")
        if self.fixed and (self.max_context_tokens or self.scale_tokens):
            raise ValueError("fixed: has its own sizes, take max_context_tokens, scale_tokens out")
        if self.think_cap_s and not self.think_factor:
            raise ValueError("think_cap_s caps nothing, set think_factor beside it")
        return self

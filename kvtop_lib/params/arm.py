"""An arm: one server configuration, the thing that is compared."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvtop_lib.params.base import ParamsFile, ServerArgs
from kvtop_lib.terms import DraftMethod


class Draft(BaseModel):
    """Who drafts, and how many tokens are verified per forward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: DraftMethod = "none"
    width: int = Field(default=1, ge=1, le=64)  # tokens verified per request and forward

    @property
    def depth(self) -> int:
        """Draft tokens proposed per iteration (a chain: width - 1)."""
        return self.width - 1

    @model_validator(mode="after")
    def _width_fits_method(self) -> Self:
        if (self.method == "none") != (self.width == 1):
            raise ValueError(
                "draft.width must be 1 without drafting and at least 2 with it "
                f"(method {self.method!r}, width {self.width})"
            )
        return self


class Arm(ParamsFile):
    """One server configuration (``params/arms/<id>.yaml``)."""

    draft: Draft = Draft()
    layout: Literal["single"] = "single"
    server_args: ServerArgs = {}
    env: dict[str, str] = {}
    record_iterations: bool = True  # one record per scheduler iteration, by the plug-in

    @model_validator(mode="after")
    def _draft_decides(self) -> Self:
        taken = sorted(
            k
            for k in self.server_args
            if k in {"port", "host", "model", "model-path", "served-model-name"}
            or k.startswith(("speculative-algorithm", "speculative-num-", "speculative-eagle-topk"))
        )
        if taken:
            raise ValueError(
                f"server_args may not set {', '.join(taken)}: draft: and the launcher decide them"
            )
        return self

"""An arm: one server configuration, the thing that is compared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvtop_lib.params.base import ParamsFile, ServerArgs
from kvtop_lib.terms import DraftMethod

POLICIES = ("table", "goodput", "sglang")


class Draft(BaseModel):
    """Who drafts, and how many tokens are verified per forward.

    Attributes
    ----------
    method : who drafts.
    width : tokens verified per request and forward; with `widths`, the largest of them.
    widths : widths that a policy chooses from.
    policy : ``fixed:<width>``, ``table`` (by running requests), ``goodput`` (the most expected
        tokens per predicted second), or ``sglang`` (its own adaptive speculation).
    table : running requests -> width, valid from that number on.
    min_match : tokens that must have occurred before for an n-gram draft (``mtp_ngram``).
    simulated_accept_len : tokens per verify step that SGLang commits whatever the model says
        (the mean; steps take the whole numbers beside it). Cost without the drafter's quality:
        accepted drafts are not the model's tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: DraftMethod = "none"
    width: int = Field(default=1, ge=1, le=64)
    widths: tuple[Annotated[int, Field(ge=1, le=64)], ...] = ()
    policy: str | None = None
    table: dict[Annotated[int, Field(ge=1)], int] = {}
    min_match: int = Field(default=3, ge=1, le=64)
    simulated_accept_len: float | None = Field(default=None, ge=1)

    @property
    def depth(self) -> int:
        """Draft tokens proposed per iteration at most (a chain: width - 1)."""
        return self.width - 1

    @property
    def uses_mtp(self) -> bool:
        """Whether the model's MTP layer drafts."""
        return self.method in ("mtp", "mtp_ngram")

    @property
    def plugin_config(self) -> dict[str, Any] | None:
        """What the plug-in is told to do (its variable `KVTOP_DRAFT`); None: nothing."""
        if self.policy is None:
            return None
        told: dict[str, Any] = {
            "sources": ["mtp", "ngram"] if self.method == "mtp_ngram" else ["mtp"],
            "widths": list(self.widths),
            "policy": self.policy,
        }
        if self.method == "mtp_ngram":
            told["min_match"] = self.min_match
        return {**told, "table": self.table} if self.table else told

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """A list of widths has a largest one; a mixed source with one width has a policy too."""
        if not isinstance(data, dict):
            return data
        widths = data.get("widths")
        if isinstance(widths, list | tuple) and widths and all(isinstance(w, int) for w in widths):
            if data.get("width", max(widths)) != max(widths):
                raise ValueError("draft: give width or widths, not both")
            widths = sorted(set(widths))
            data = {**data, "widths": widths, "width": widths[-1]}
            data.setdefault("policy", "goodput")
        elif data.get("method") == "mtp_ngram" and not widths and "width" in data:
            width = data["width"]
            data = {"policy": f"fixed:{width}", **data, "widths": [width]}
        return data

    @model_validator(mode="after")
    def _width_fits_method(self) -> Self:
        if (self.method == "none") != (self.width == 1):
            raise ValueError(
                "draft.width must be 1 without drafting and at least 2 with it "
                f"(method {self.method!r}, width {self.width})"
            )
        return self

    @model_validator(mode="after")
    def _policy_fits(self) -> Self:
        if not self.widths:
            if self.policy or self.table:
                raise ValueError("draft.policy and draft.table need widths: [..] to choose from")
            return self
        if not self.uses_mtp:
            raise ValueError(f"draft.widths need method mtp or mtp_ngram, not {self.method!r}")
        kind, _, width = str(self.policy).partition(":")
        if kind == "fixed":
            if not width.isdigit() or int(width) not in self.widths:
                raise ValueError(f"draft.policy {self.policy!r} must name one of the widths")
        elif self.policy not in POLICIES:
            raise ValueError(
                f"draft.policy must be fixed:<width>, {' or '.join(POLICIES)}, not {self.policy!r}"
            )
        if (self.policy == "table") != bool(self.table):
            raise ValueError("draft.table goes with policy table, and only with it")
        if wrong := sorted(set(self.table.values()) - set(self.widths)):
            raise ValueError(f"draft.table names width {wrong[0]}, which is not among the widths")
        if self.policy == "sglang" and self.method == "mtp_ngram":
            raise ValueError("draft.policy sglang knows no n-grams, choose another policy")
        return self

    @model_validator(mode="after")
    def _simulation_fits(self) -> Self:
        simulated = self.simulated_accept_len
        if simulated is None:
            return self
        if self.method != "mtp" or self.widths:
            raise ValueError("draft.simulated_accept_len needs method mtp and one width")
        if simulated > self.width:
            raise ValueError(
                f"draft.simulated_accept_len {simulated:g} is more than the width of {self.width}"
            )
        return self


class Arm(ParamsFile):
    """One server configuration (``params/arms/<id>.yaml``)."""

    draft: Draft = Draft()
    layout: Literal["single"] = "single"
    server_args: ServerArgs = {}
    env: dict[str, str] = {}
    record_iterations: bool = True  # one record per scheduler iteration, by the plug-in

    @property
    def lossless(self) -> bool:
        """Whether the output must be the model's; where acceptance is simulated it need not."""
        return self.draft.simulated_accept_len is None

    @model_validator(mode="after")
    def _simulation_is_labelled(self) -> Self:
        if not self.lossless and "simulated" not in self.title.lower():
            raise ValueError("the title of an arm with simulated acceptance must say 'simulated'")
        return self

    @model_validator(mode="after")
    def _draft_decides(self) -> Self:
        taken = sorted(
            k
            for k in self.server_args
            if k in {"port", "host", "model", "model-path", "served-model-name"}
            or k.startswith(("speculative-algorithm", "speculative-num-", "speculative-eagle-topk"))
            or (self.draft.policy and k.startswith("speculative-adaptive"))
        )
        if taken:
            raise ValueError(
                f"server_args may not set {', '.join(taken)}: draft: and the launcher decide them"
            )
        return self

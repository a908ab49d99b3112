"""A published source: what its tables do not hold, and which of their columns is which."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvtop_lib.params.base import ParamsFile
from kvtop_lib.terms import DraftMethod

Text = Annotated[str, Field(min_length=1)]
Metric = Literal["output_tok_s", "ttft_s_p50"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Columns(_Part):
    """Columns of a sheet that belong to one arm.

    Attributes
    ----------
    output_tok_s : output throughput, tokens per second.
    change_pct : change of it against the reference arm, percent, where no throughput was printed.
    per_request_tok_s : speed of one request, tokens per second.
    quoted_output_pct, quoted_per_request_pct : changes that the source prints beside them.
    """

    output_tok_s: Text | None = None
    change_pct: Text | None = None
    per_request_tok_s: Text | None = None
    quoted_output_pct: Text | None = None
    quoted_per_request_pct: Text | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.output_tok_s is None) == (self.change_pct is None):
            raise ValueError("give output_tok_s or, where only ratios were printed, change_pct")
        return self


class QuotedDraft(_Part):
    """How a published arm drafts; ``widths`` as the source states them."""

    method: DraftMethod = "none"
    widths: tuple[Annotated[int, Field(ge=1)], ...] = ()


class QuotedArm(_Part):
    """One arm of a published table; ``also`` is what else it changes, in words."""

    title: Text
    draft: QuotedDraft = QuotedDraft()
    also: str = ""
    columns: Columns


class Conditions(_Part):
    """Phases of a point in seconds, and its windows (``blocks``); None where not stated."""

    burn_in_s: float | None = None
    warmup_s: float | None = None
    window_s: float | None = None
    blocks: int | None = Field(default=None, ge=1)


class QuotedWorkload(_Part):
    """What was asked of the server, in words."""

    title: Text
    description: str = ""


class Sheet(_Part):
    """One table of a source.

    Attributes
    ----------
    file : CSV beside the YAML file; its column ``concurrency`` is the number of clients.
    run, lines, commit : the source's own record: run id, lines of its results, commit.
    reference : the arm that the others are compared with.
    isolated : the arms differ in drafting alone.
    decimals : decimals of the percentages that the source prints.
    metric : what its throughput is, in words.
    """

    file: Text
    run: str | None = None
    lines: str | None = None
    commit: str | None = None
    reference: str = "baseline"
    isolated: bool = False
    decimals: int | None = Field(default=None, ge=0, le=3)
    metric: Text
    profile: Conditions = Conditions()
    workload: QuotedWorkload
    arms: dict[str, QuotedArm]

    @model_validator(mode="after")
    def _reference_has_speeds(self) -> Self:
        known = self.arms.get(self.reference)
        if known is None:
            raise ValueError(f"reference {self.reference!r} is none of the arms")
        if known.columns.output_tok_s is None:
            raise ValueError(f"the reference {self.reference!r} needs output_tok_s")
        return self


class Fact(_Part):
    """A single published change outside the tables: of ``metric``, against the reference arm.

    ``finer`` says that a table holds the same change with fewer decimals.
    """

    arm: Text
    c: int = Field(ge=1)
    metric: Metric
    change_pct: float
    decimals: int = Field(default=0, ge=0, le=3)
    finer: bool = False


class Stated(_Part):
    """A statement of the source with one number or a few words, for the method table."""

    what: Text
    value: float | int | Text
    unit: str = ""


class Layout(_Part):
    """Servers and devices, and where in the source it is said so."""

    text: Text
    stated_in: str = ""


class Claim(_Part):
    """What the source offers as the cause; ``tests`` are claims for `kvtop_lib.audit`."""

    text: Text
    tests: tuple[str, ...] = ()


class Origin(_Part):
    """What a reader looks for to find the source."""

    title: Text
    publisher: str = ""
    kind: Text = "article"
    records: str = ""


class QuotedModel(_Part):
    """The model that was served."""

    title: Text
    weights: str = ""


class Engine(_Part):
    """The engine, as far as stated; its commit is the sheet's."""

    name: Text
    options: str = ""


class Published(ParamsFile):
    """Evidence of others (``params/published/<id>.yaml``); the first sheet is the load sweep."""

    source: Origin
    model: QuotedModel
    layout: tuple[Layout, ...]
    engine: Engine
    sheets: dict[str, Sheet] = Field(min_length=1)
    facts: tuple[Fact, ...] = ()
    stated: tuple[Stated, ...] = ()
    cause: Claim | None = None

    @model_validator(mode="after")
    def _facts_name_arms(self) -> Self:
        known = next(iter(self.sheets.values())).arms
        if wrong := [f.arm for f in self.facts if f.arm not in known]:
            raise ValueError(f"facts: no arm {wrong[0]!r}; arms are: {', '.join(known)}")
        return self

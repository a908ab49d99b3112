"""What every parameter file has: an id, a title, and no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FlagName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
ServerArgs = dict[FlagName, bool | int | float | str]
"""Server flags without their dashes (``max-total-tokens: 100000``); ``true`` is a bare flag,
``false`` takes a flag out that a broader file has set."""


class ParamsFile(BaseModel):
    """A frozen parameter file; its id is the file's name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9_\-]*$")
    title: str = Field(pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$")
    description: str = ""

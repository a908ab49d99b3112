"""What every parameter file has: an id, a title, and no unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

ServerArgs = dict[str, bool | int | float | str]
"""Server flags without their dashes (``max-total-tokens: 100000``); ``true`` is a bare flag,
``false`` takes a flag out that a broader file has set."""


class ParamsFile(BaseModel):
    """A frozen parameter file; its id is the file's name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9_\-]*$")
    title: str = Field(min_length=1)
    description: str = ""

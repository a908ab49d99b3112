"""A model: its checkpoint, its MTP layer, and the flags that hold for every arm that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvtop_lib import paths
from kvtop_lib.params.base import ParamsFile, ServerArgs


def _resolve(text: str) -> Path:
    """Absolute path of a checkpoint: ``cache:x``, ``embedded:x`` or a path as given."""
    scheme, _, rest = text.partition(":")
    if scheme == "cache":
        return paths.cache_dir() / rest
    if scheme == "embedded":
        return paths.embedded_dir() / rest
    return Path(text).expanduser()


class Mtp(BaseModel):
    """How the engine is told to draft with the model's MTP layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Literal["EAGLE", "NEXTN"]
    draft: str | None = None  # checkpoint of the layer, None when it is inside the model's own
    token_map: str | None = None  # draft vocabulary, a file inside the draft's checkpoint

    @property
    def draft_path(self) -> Path | None:
        """Folder of the MTP layer's own checkpoint, if it has one."""
        return _resolve(self.draft) if self.draft else None

    @property
    def token_map_path(self) -> Path | None:
        """File of the draft vocabulary, if the layer has one."""
        return self.draft_path / self.token_map if self.draft and self.token_map else None


class Model(ParamsFile):
    """One model (``params/models/<id>.yaml``)."""

    builder: Literal["smollm2"] | None = None  # who makes the checkpoint; None: it is there
    checkpoint: str
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "auto"
    context_tokens: int = Field(ge=128)
    weights: str = ""  # quantisation and origin, one phrase for the method table
    licence: str = ""
    mtp: Mtp | None = None
    device: Literal["cpu", "cuda"] = "cuda"
    server_args: ServerArgs = {}
    env: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """Folder of the Hugging Face checkpoint."""
        return _resolve(self.checkpoint)

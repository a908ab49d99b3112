"""A server command that can be copied: what an arm was deployed with, without this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvtop_lib import paths
from kvtop_lib.engine.command import MODULE, server_args, server_env
from kvtop_lib.params import Arm, Model
from kvtop_lib.terms import KvtopError

PORT = 30000  # SGLang's default
_KEPT = ("KVTOP_", "SGLANG_", "OMP_")


def _portable(text: str) -> str:
    """Paths inside the checkout relative to it, the way one runs the command from there."""
    path = Path(text)
    if not path.is_absolute():
        return text
    for root in (paths.repo_root(), Path(paths.__file__).parents[1]):
        if path.is_relative_to(root):
            return os.path.relpath(path, root)
    if path.is_relative_to(paths.cache_dir()):
        return f".cache/kvtop/{path.relative_to(paths.cache_dir())}"
    return path.name


def server_command_text(manifest: dict[str, Any], arm: str) -> str:
    """Shell command that serves an arm of a run, to be run from the repository's folder.

    Raises
    ------
    KvtopError
        When the manifest lacks the arm or the model, or they do not load.
    """
    try:
        chosen = Arm(**manifest["arms"][arm])
        model = Model(**manifest["model"])
    except (KeyError, TypeError) as e:
        raise KvtopError(f"the manifest has no parameters of arm {arm!r} and its model") from e
    except ValidationError as e:
        raise KvtopError(
            f"the manifest's parameters of {arm!r} are of another version: "
            f"{' '.join(str(e.errors()[0]['msg']).split())}"
        ) from e
    own = {**model.env, **chosen.env}
    env = {k: v for k, v in server_env(model, chosen).items() if k in own or k.startswith(_KEPT)}
    words = [f"{k}={shlex.quote(_portable(v))}" for k, v in env.items() if k != "KVTOP_THREADS"]
    if model.device == "cpu":
        words += ["KVTOP_THREADS=$(nproc)", f"PYTHONPATH={_portable(str(paths.plugin_site_dir()))}"]
    words += [Path(sys.executable).name.rstrip("0123456789."), "-m", MODULE]
    for name, value in server_args(model, chosen, PORT).items():
        words.append(f"--{name}")
        if value is not True:
            words.append(shlex.quote(_portable(str(value))))
    return " ".join(words)

"""Where things are: the repository's folders and the cache of built model weights."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def repo_root() -> Path:
    """Folder that holds ``params/`` and ``notebooks/`` (the checkout the package runs from).

    ``KVTOP_ROOT`` overrides it when the package is installed elsewhere.
    """
    return Path(os.environ.get("KVTOP_ROOT") or _PACKAGE.parent)


def params_dir() -> Path:
    """Folder of arms, models, workloads and profiles."""
    return repo_root() / "params"


def notebooks_dir() -> Path:
    """Folder of the numbered notebooks."""
    return repo_root() / "notebooks"


def outputs_dir() -> Path:
    """Folder of runs and rendered notes (``KVTOP_OUTPUTS`` overrides it)."""
    return Path(os.environ.get("KVTOP_OUTPUTS") or repo_root() / "outputs")


def runs_dir() -> Path:
    """Folder of raw run records."""
    return outputs_dir() / "runs"


def cache_dir() -> Path:
    """Folder of weights and kernels that are built, never committed (``KVTOP_CACHE``)."""
    return Path(os.environ.get("KVTOP_CACHE") or repo_root() / ".cache" / "kvtop")


def portable(text: str) -> str:
    """Text of a record without this machine's folders, as it may be committed.

    The checkout becomes ``.``, outputs and caches elsewhere their last name; also where JSON has
    escaped a letter. A name that only begins like such a folder stays.
    """
    root = repo_root()
    elsewhere = [f for f in (outputs_dir(), cache_dir()) if root not in f.parents]
    for folder, own in [*((f, f.name) for f in elsewhere if f.is_absolute()), (root, ".")]:
        for spelled in {str(folder), json.dumps(str(folder))[1:-1]} - {"/", "."}:
            whole = rf"(?<![\w.-]){re.escape(spelled)}(?![\w-]|\.\w)"
            text = re.sub(whole, lambda _, own=own: own, text)
    return text


def embedded_dir() -> Path:
    """Folder of the committed models and traces (package data)."""
    return _PACKAGE / "embedded"


def plugin_site_dir() -> Path:
    """Folder that goes onto ``PYTHONPATH`` of CPU servers: it holds the ``sgl_kernel`` stand-in."""
    return _PACKAGE / "sglang_plugin" / "cpu_site"

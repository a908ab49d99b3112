"""What a server says about itself, as far as it decides its answers, and its tokenizer."""

from __future__ import annotations

import http.client
import json
import urllib.error
from pathlib import Path
from typing import Any

from kvtop_lib.engine.client import direct
from kvtop_lib.terms import KvtopError

SETTINGS = ("dtype", "device", "attention_backend", "speculative_algorithm")
"""Resolved server arguments that can change a greedy answer."""


def served_engine(url: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """Engine, version and resolved settings from SGLang's ``/server_info``.

    Another OpenAI-compatible server has no such route and gets ``{"name": "unknown"}``.

    Raises
    ------
    KvtopError
        Nothing answers at ``url``.
    """
    info = _server_info(url, timeout_s)
    if info is None:
        return {"name": "unknown"}
    kept = {key: info[key] for key in SETTINGS if info.get(key) is not None}
    return {"name": "sglang", "version": info.get("version"), **kept}


def served_tokenizer(url: str, timeout_s: float = 10.0) -> Path | None:
    """The served model's ``tokenizer.json``; None where it or the server is not to be found."""
    try:
        info = _server_info(url, timeout_s) or {}
    except KvtopError:  # that nothing answers is said by the first who needs an answer
        return None
    for key in ("tokenizer_path", "model_path"):
        if isinstance(info.get(key), str):
            try:
                path = Path(info[key]).expanduser()
                path = path / "tokenizer.json" if path.is_dir() else path
                if path.is_file() and path.suffix == ".json":
                    return path
            except (OSError, RuntimeError, ValueError):
                continue  # a name on the server's machine, no path of this one
    return None


def _server_info(url: str, timeout_s: float) -> dict[str, Any] | None:
    """SGLang's account of itself; None of another server."""
    try:
        with direct(f"{url.rstrip('/')}/server_info", timeout_s) as reply:
            info = json.loads(reply.read())
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise KvtopError(f"{url} does not answer: {error}; start the server first.") from None
    return info if isinstance(info, dict) else None

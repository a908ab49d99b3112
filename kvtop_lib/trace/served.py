"""What a server says about itself, as far as it decides its answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from kvtop_lib.terms import KvtopError

SETTINGS = ("dtype", "device", "attention_backend", "speculative_algorithm")
"""Resolved server arguments that can change a greedy answer."""

_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


def served_engine(url: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """Engine, version and resolved settings from SGLang's ``/server_info``.

    Another OpenAI-compatible server has no such route and gets ``{"name": "unknown"}``.

    Raises
    ------
    KvtopError
        Nothing answers at ``url``.
    """
    try:
        with _LOCAL.open(f"{url.rstrip('/')}/server_info", timeout=timeout_s) as reply:
            info = json.loads(reply.read())
    except urllib.error.HTTPError:
        return {"name": "unknown"}
    except (OSError, ValueError) as error:
        raise KvtopError(f"{url} does not answer: {error}; start the server first.") from None
    kept = {key: info[key] for key in SETTINGS if info.get(key) is not None}
    return {"name": "sglang", "version": info.get("version"), **kept}

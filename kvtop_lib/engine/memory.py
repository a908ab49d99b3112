"""What a server's memory holds: weights, draft weights, KV pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GIB = 2**30
_SIZES = ("weights_bytes", "draft_weights_bytes", "kv_bytes", "draft_kv_bytes")


def memory_split(resolved: dict[str, Any], iterations: Path | None) -> dict[str, Any]:
    """Bytes and tokens that the resolved server holds, of its first rank.

    The recorder in the server's process knows the sizes exactly. Without it they are the
    engine's own, rounded to 0.001 GiB; it takes its weights from the change of free memory, which
    says nothing on a CPU, and tells nothing of a draft's.

    Parameters
    ----------
    resolved : ``/server_info``.
    iterations : the recorder's stream, None without one.

    Returns
    -------
    dict
        ``weights_bytes, draft_weights_bytes, kv_bytes, draft_kv_bytes, kv_tokens,
        draft_kv_tokens, source`` (``recorder``, ``engine`` or None); None where not known or,
        for the draft's, where drafts have no weights or KV of their own.
    """
    found: dict[str, Any] = dict.fromkeys(_SIZES)
    tokens = resolved.get("max_total_num_tokens")
    header = _header(iterations)
    if header.get("kv_bytes") is not None:
        found |= {k: header.get(k) for k in _SIZES} | {"source": "recorder"}
    else:
        said = (resolved.get("internal_states") or [{}])[0].get("memory_usage") or {}
        weights = None if resolved.get("device") == "cpu" else said.get("weight")
        for name, gib in (("weights_bytes", weights), ("kv_bytes", said.get("kvcache"))):
            found[name] = None if gib is None else round(gib * GIB)
        found["source"] = "engine" if said else None
    drafts = found["draft_kv_bytes"] is not None
    return found | {"kv_tokens": tokens, "draft_kv_tokens": tokens if drafts else None}


def _header(file: Path | None) -> dict[str, Any]:
    """First line of a stream; empty without one."""
    try:
        with file.open("rb") as f:
            found = json.loads(f.readline())
    except (AttributeError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

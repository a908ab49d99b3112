"""The record of a deployment: what was asked for, and what the engine made of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from kvtop_lib import paths
from kvtop_lib.engine.command import DRAFT_LOG, RECORD
from kvtop_lib.engine.log import running_cap
from kvtop_lib.engine.memory import memory_split
from kvtop_lib.engine.server import Server
from kvtop_lib.params import Arm, Model
from kvtop_lib.provenance import versions

_OF_THE_MACHINE = ("PATH", "PYTHONPATH", RECORD, DRAFT_LOG)


def changed_args(requested: dict[str, Any], resolved: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Requested flags that the engine resolved to something else, ``{flag: {asked, got}}``.

    SGLang changes `speculative_num_draft_tokens`, `max_running_requests` and back ends silently.
    """
    changed = {}
    for flag, asked in requested.items():
        got = resolved.get(flag.replace("-", "_"))
        if got is not None and str(got) != str(asked):
            changed[flag] = {"asked": asked, "got": got}
    return changed


def portable(value: Any) -> Any:
    """`value` with this machine's folders taken out of its texts, so that records may travel."""
    if isinstance(value, str):
        cache, root = str(paths.cache_dir()), str(paths.repo_root())
        return value.replace(cache, "<cache>").replace(root, "<repo>")
    if isinstance(value, dict):
        return {k: portable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [portable(v) for v in value]
    return value


def deployment(server: Server, model: Model, arm: Arm) -> dict[str, Any]:
    """What ``deployment.json`` holds about a running server.

    Returns
    -------
    dict
        ``arm, model, layout, started_utc, startup_s, warm, requested, resolved, changed, env,
        kv_tokens, max_running_requests, width_tokens, memory_bytes, memory, cores, versions``.
    """
    resolved = server.resolved()
    record = {
        "arm": arm.id,
        "model": model.id,
        "layout": arm.layout,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "startup_s": round(server.startup_s, 3),
        "warm": server.warm,
        "requested": server.requested_args,
        "resolved": resolved,
        "changed": changed_args(server.requested_args, resolved),
        "env": {k: v for k, v in server.command.env.items() if k not in _OF_THE_MACHINE},
        "kv_tokens": resolved.get("max_total_num_tokens"),
        "max_running_requests": resolved.get("max_running_requests")
        or running_cap(server.log_file),
        "width_tokens": resolved.get("speculative_num_draft_tokens") or 1,
        "memory_bytes": server.memory_bytes(),
        "memory": memory_split(resolved, server.iterations_file),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
    }
    return portable(record)

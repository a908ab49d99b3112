"""What two runs differ in; a comparison of runs that differ silently is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtop_lib import tables
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.terms import KvtopError

GROUPS: dict[str, tuple[str, ...]] = {
    "machine": ("machine.cpu_model", "machine.cores", "machine.simd", "machine.gpu"),
    "model": (
        "model.id", "model.checkpoint", "model.dtype", "model.device", "model.server_args",
        "model.env", "weights.checkpoint", "weights.draft",
    ),
    "workload": (
        "workload.id", "workload.trace", "workload.output", "workload.max_output_tokens",
        "workload.start", "workload.stagger_s", "workload.think_factor", "trace.sha256",
    ),
    "engine": (
        "engine.name", "engine.version", "versions.torch", "versions.transformers",
        "locks_sha256",
    ),
    "plan": (
        "profile.burn_in_s", "profile.warmup_s", "profile.window_s", "profile.windows",
        "profile.drain_s", "profile.timeout_s",
    ),
    "seed": ("profile.seed",),
    "code": ("git.commit", "git.dirty"),
}  # fmt: skip
"""What has to agree, by the name under which a difference is declared; and the shared arms'
``draft``, ``server_args``, ``env`` and ``layout`` under ``arms``."""

ARM_FIELDS = ("draft", "server_args", "env", "layout")


@dataclass(frozen=True)
class Difference:
    """A field of both manifests that differs."""

    group: str
    path: str
    first: Any
    second: Any


def shared_arms(first: Evidence, second: Evidence) -> list[str]:
    """Arms of both runs, in the first's order."""
    return [a for a in first.arms if a in second.arms]


def differences(first: Evidence, second: Evidence) -> list[Difference]:
    """Fields that differ, in the order of `GROUPS`; one that neither run recorded does not."""
    paths = [(group, path) for group, inside in GROUPS.items() for path in inside]
    paths += [
        ("arms", f"arms.{arm}.{field}")
        for arm in shared_arms(first, second)
        for field in ARM_FIELDS
    ]
    found = []
    for group, path in paths:
        values = [tables.pick(ev.manifest, path) for ev in (first, second)]
        if values[0] != values[1]:
            found.append(Difference(group, path, *values))
    return found


def check(found: Sequence[Difference], declared: Sequence[str]) -> None:
    """Refuse differences that nobody has declared.

    Raises
    ------
    KvtopError
        With the first of them and the groups to declare; also for a group that does not exist.
    """
    known = [*GROUPS, "arms"]
    if unknown := [d for d in declared if d not in known]:
        raise KvtopError(f"--declare {unknown[0]!r} is unknown; it is one of: {', '.join(known)}")
    silent = [d for d in found if d.group not in declared]
    if not silent:
        return
    groups = list(dict.fromkeys(d.group for d in silent))
    one, more = silent[0], len(silent) - 1
    rest = f" and {more} more field{'s' if more > 1 else ''}" if more else ""
    raise KvtopError(
        f"the runs differ in {one.path} ({short(one.first)}, {short(one.second)}){rest}; "
        f"say that this is what you compare with --declare {','.join(groups)}"
    )


def short(value: Any, limit: int = 40) -> str:
    """A value of a manifest in a few characters."""
    text = "not recorded" if value is None else str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

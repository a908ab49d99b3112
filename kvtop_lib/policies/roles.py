"""Which arms of a run hold one width, and which choose it before every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kvtop_lib.stats.verdicts import BASELINE_AA
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

BASELINE = "baseline"


@dataclass(frozen=True)
class Role:
    """What an arm is in the comparison.

    Attributes
    ----------
    kind : ``fixed`` (a server of one width; width 1 is the server without drafting, since nobody
        deploys a draft layer to leave it unused), ``policy`` (chooses among `widths`), or ``held``
        (prepared for several widths, and kept at one: what the deployment alone costs).
    widths : tokens verified per request and forward that occur.
    policy : as in the arm's file, None for ``fixed``.
    """

    arm: str
    title: str
    kind: Literal["fixed", "policy", "held"]
    widths: tuple[int, ...]
    policy: str | None = None


def roles(run: Run) -> dict[str, Role]:
    """Roles of a run's arms, in its order.

    Arms of n-gram drafts, of other server arguments than the baseline's, and the A/A partner
    differ in more than the width and have none.

    Raises
    ------
    KvtopError
        When no arm chooses among widths, or no width is fixed.
    """
    arms = run.manifest.get("arms") or {}
    found = {a: r for a, p in arms.items() if (r := _role(a, p, arms.get(BASELINE) or {}))}
    kinds = {r.kind for r in found.values()}
    for kind, lack in {
        "policy": "no arm that chooses among widths (policy: in its file)",
        "fixed": "no arm of a fixed width to compare with",
    }.items():
        if kind not in kinds:
            raise KvtopError(f"run {run.name!r} has {lack}; measure the profile 'policies'")
    return found


def _role(arm: str, params: dict[str, Any], base: dict[str, Any]) -> Role | None:
    draft = params.get("draft") or {}
    method, policy = draft.get("method") or "none", draft.get("policy")
    if arm == BASELINE_AA or method not in ("none", "mtp"):
        return None
    if draft.get("simulated_accept_len") is not None:
        return None
    if any((params.get(k) or {}) != (base.get(k) or {}) for k in ("server_args", "env")):
        return None
    title = params.get("title") or arm
    if policy is None:
        return Role(arm, title, "fixed", (int(draft.get("width") or 1),))
    name, _, width = policy.partition(":")
    if name == "fixed":
        return Role(arm, title, "held", (int(width),), policy)
    return Role(arm, title, "policy", tuple(draft.get("widths") or ()), policy)

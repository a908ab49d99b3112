"""``policies.json``: a run's policies against its fixed widths, from results and manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from kvtop_lib import iterations, stats
from kvtop_lib.policies.chosen import shares, why
from kvtop_lib.policies.compare import best_fixed, by_load, over_range, range_means
from kvtop_lib.policies.noise import Noise
from kvtop_lib.policies.roles import Role, roles
from kvtop_lib.policies.words import Claim, claim
from kvtop_lib.store import Run, write_json
from kvtop_lib.terms import SCHEMA, KvtopError


@dataclass(frozen=True)
class Findings:
    """Everything that the comparison of a run's policies gives.

    Attributes
    ----------
    roles : arm -> what it is in the comparison.
    loads : lanes, rising.
    noise : what the run lets noise explain.
    best : `kvtop_lib.policies.best_fixed`.
    against : `kvtop_lib.policies.by_load`.
    ranged : `kvtop_lib.policies.over_range`.
    means : `kvtop_lib.policies.range_means`.
    shares, why : `kvtop_lib.policies.shares`, `kvtop_lib.policies.why`; empty without a recorder.
    claims : one per policy.
    """

    roles: dict[str, Role]
    loads: tuple[int, ...]
    noise: Noise
    best: pd.DataFrame
    against: pd.DataFrame
    ranged: pd.DataFrame
    means: pd.DataFrame
    shares: pd.DataFrame
    why: pd.DataFrame
    claims: tuple[Claim, ...]

    @property
    def multiplicity(self) -> str:
        """How many comparisons of policies were made, in words."""
        chosen = self.against["kind"] == "policy"
        asked = pd.concat([self.against.loc[chosen, "p"], self.ranged["p"]], ignore_index=True)
        return stats.multiplicity(pd.DataFrame({"p": asked.astype(float)}))


def find(run: Run, confidence: float = 0.95) -> Findings:
    """Compare the policies of a run with its fixed widths.

    Raises
    ------
    KvtopError
        When the run has no policy or no fixed width, no closed loop, or no usable point.
    """
    parts = roles(run)
    points = run.results()
    points = points[points["c"].notna()].astype({"c": int})
    planned = [x for x in (run.manifest.get("profile") or {}).get("loads", ()) if type(x) is int]
    loads = tuple(sorted({*planned, *points["c"]}))
    if points.empty:
        raise KvtopError(f"run {run.name!r} has no point by lanes yet; run the sweep")
    noise = Noise.of(points, confidence)
    best = best_fixed(points, parts, loads)
    against = by_load(points, parts, loads, noise)
    ranged = over_range(points, parts, loads, noise)
    recorded = iterations.recorded(run)
    chosen = [r.arm for r in parts.values() if r.kind == "policy"]
    return Findings(
        parts, loads, noise, best, against, ranged, range_means(against, points),
        shares(recorded, parts), why(recorded, best, parts),
        tuple(claim(against, ranged, arm, noise) for arm in chosen),
    )  # fmt: skip


def write_policies(run: Run, confidence: float = 0.95) -> Findings:
    """Write ``policies.json`` into the run; what it found, errors as in `find`."""
    found = find(run, confidence)
    write_json(run.path / "policies.json", _document(run, found))
    return found


def _document(run: Run, found: Findings) -> dict[str, Any]:
    claims = [{**vars(c), "holds": c.holds, "text": str(c)} for c in found.claims]
    frames = ("best", "against", "ranged", "means", "shares", "why")
    return {
        "schema": SCHEMA,
        "run": run.name,
        "commit": (run.manifest.get("git") or {}).get("commit"),
        "confidence": found.noise.confidence,
        "noise": str(found.noise),
        "multiplicity": found.multiplicity,
        "claims": claims,
        **{name: getattr(found, name).to_dict("records") for name in frames},
    }

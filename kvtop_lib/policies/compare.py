"""Output throughput of every policy against the best fixed width at each load, and over all.

The best fixed width of a load is the one with the highest geometric mean over the blocks. Being
the best of several noisy numbers it looks a little better than it is, so a policy is judged
somewhat strictly. Ratios are formed within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvtop_lib.policies.noise import METRIC, NOT_MEASURED, Noise
from kvtop_lib.policies.roles import Role

Roles = Mapping[str, Role]


def _logs(points: pd.DataFrame) -> pd.DataFrame:
    """Usable points: ``arm``, ``c``, ``block``, ``line``, ``log`` of the metric."""
    ok = points[points["status"] == "ok"].reindex(columns=["arm", "c", "block", "line", METRIC])
    value = pd.to_numeric(ok.pop(METRIC), errors="coerce")
    good = (value > 0) & np.isfinite(value)
    return ok[good].assign(log=np.log(value[good].astype(float)))


def _pairs(logs: pd.DataFrame, arm: str, other: str | None) -> pd.DataFrame:
    own, base = logs[logs["arm"] == arm], logs[logs["arm"] == other]
    both = own.merge(base, on=["c", "block"], suffixes=("", "_other"))
    return both.assign(log=both["log"] - both["log_other"])


def best_fixed(points: pd.DataFrame, roles: Roles, loads: Sequence[int]) -> pd.DataFrame:
    """The best fixed width at each load.

    Returns
    -------
    DataFrame
        ``c``, ``arm`` (None when none can be named), ``width``, ``tok_s`` (geometric mean over
        the blocks that all measured fixed widths have), ``missing`` (list of fixed arms without a
        point there: the best of the others may not be the best).
    """
    fixed = [r.arm for r in roles.values() if r.kind == "fixed"]
    logs, rows = _logs(points), []
    for c in loads:
        here = logs[(logs["c"] == c) & logs["arm"].isin(fixed)]
        mean = here.pivot(index="block", columns="arm", values="log").dropna().mean()
        known = mean.dropna()  # empty when the measured arms have no block in common
        best = known.idxmax() if len(known) else None
        rows.append(
            {
                "c": c, "arm": best, "width": roles[best].widths[0] if best else None,
                "tok_s": math.exp(known[best]) if best else math.nan,
                "missing": [a for a in fixed if a not in known],
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=["c", "arm", "width", "tok_s", "missing"])


def by_load(points: pd.DataFrame, roles: Roles, loads: Sequence[int], noise: Noise) -> pd.DataFrame:
    """Every arm against the best fixed width of each load.

    Returns
    -------
    DataFrame
        As `kvtop_lib.tables.ratios` (``arm``, ``title``, ``c``, ``mean``, ``low``, ``high``,
        ``values``, ``n``, ``lines``, ``status``, ``reason``), and ``kind``, ``best`` (arm),
        ``p``, ``verdict``: ``higher``, ``lower``, ``none``, ``unknown`` as in
        `kvtop_lib.stats.verdicts`, ``best`` for the best itself, or ``not measured`` where a
        point of the arm is missing, or of a fixed width that might have been the best.
    """
    logs, best, rows = _logs(points), best_fixed(points, roles, loads), []
    for role in roles.values():
        for top in best.itertuples():
            pairs = _pairs(logs[logs["c"] == top.c], role.arm, top.arm)
            found = {"n": len(pairs)}
            if len(pairs):
                found = {**found, "ratio": 1.0} if role.arm == top.arm else noise.mean(pairs)
            needed = points["arm"].isin([role.arm, top.arm, *top.missing])
            bad = points[needed & (points["c"] == top.c) & (points["status"] != "ok")]
            rows.append(
                {
                    "arm": role.arm, "title": role.title, "kind": role.kind, "c": top.c,
                    "best": top.arm, **found, "values": np.exp(pairs["log"]).tolist(),
                    "lines": [(int(a), int(b)) for a, b in pairs[["line", "line_other"]].values],
                    "missing": bool(top.missing),
                    "status": bad["status"].iloc[0] if len(bad) else "ok",
                    "reason": str(bad["reason"].iloc[0]) if len(bad) and "reason" in bad else "",
                }
            )  # fmt: skip
    columns = "arm title kind c best n ratio low high p values lines missing status reason".split()
    frame = pd.DataFrame(rows, columns=columns)
    verdict = noise.verdicts(frame)
    open_ = frame["missing"] & verdict.isin(["none", "higher"])
    verdict = verdict.mask(open_, NOT_MEASURED).mask(frame["arm"] == frame["best"], "best")
    return frame.assign(verdict=verdict).rename(columns={"ratio": "mean"}).drop(columns="missing")


def over_range(
    points: pd.DataFrame, roles: Roles, loads: Sequence[int], noise: Noise
) -> pd.DataFrame:
    """Every policy against every single fixed width, over all loads.

    Returns
    -------
    DataFrame
        ``arm``, ``title``, ``other``, ``other_title``, ``loads`` (that both have), ``whole``
        (whether these are all), ``n``, ``ratio`` (geometric mean over these loads), ``low``,
        ``high``, ``p``, ``verdict`` (as in `by_load`; ``not measured`` when it is not the whole
        range).
    """
    logs, rows = _logs(points), []
    logs = logs[logs["c"].isin(loads)]
    for role in (r for r in roles.values() if r.kind == "policy"):
        for other in (r for r in roles.values() if r.kind == "fixed"):
            pairs = _pairs(logs, role.arm, other.arm)
            count = pairs["c"].nunique()
            rows.append(
                {
                    "arm": role.arm, "title": role.title, "other": other.arm,
                    "other_title": other.title, "loads": count, "whole": count == len(loads),
                    **(noise.mean(pairs) if count else {"n": 0}),
                }
            )  # fmt: skip
    columns = "arm title other other_title loads whole n ratio low high p".split()
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(verdict=noise.verdicts(frame).where(frame["whole"], NOT_MEASURED))


def range_means(against: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Geometric means over loads of every arm.

    Parameters
    ----------
    against
        `by_load`.
    points
        As there.

    Returns
    -------
    DataFrame
        ``arm``, ``title``, ``kind``, ``loads`` (with a ratio), ``of`` (loads of the run),
        ``tok_s`` (geometric mean over these loads), ``to_best`` (of the ratio to the best fixed
        width of each load). Rows of other loads than all are no rank among the others.
    """
    by = _logs(points).groupby(["arm", "c"])["log"].mean()
    rows = []
    for (arm, title, kind), own in against.groupby(["arm", "title", "kind"], sort=False):
        known = own[own["mean"].notna()]
        logs = {
            "tok_s": [by[arm, c] for c in known["c"]],
            "to_best": np.log(known["mean"].astype(float)).tolist(),
        }
        means = {k: math.exp(np.mean(v)) if v else math.nan for k, v in logs.items()}
        rows.append(
            {"arm": arm, "title": title, "kind": kind, "loads": len(known), "of": len(own), **means}
        )
    return pd.DataFrame(rows)

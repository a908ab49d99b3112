"""Which widths ran at each load, and what a policy lost by them, from recorded iterations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from kvtop_lib.iterations import STEPS
from kvtop_lib.policies.roles import Role

Roles = Mapping[str, Role]
SHARES = "arm c width iterations share time_share per_request iteration_s".split()
WHY = "arm c best width at_width same_width other_widths".split()


def shares(recorded: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Share of each width in the iterations that extend requests, per arm and load.

    Parameters
    ----------
    recorded
        `kvtop_lib.iterations.recorded`.
    roles
        `kvtop_lib.policies.roles`; other arms are left out.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``width``, ``iterations``, ``share`` (of the arm's iterations at this
        load), ``time_share`` (of their time), ``per_request`` (tokens committed per request and
        iteration), ``iteration_s`` (mean). Blocks are pooled. Empty without a recorder.
    """
    steps = _steps(recorded, roles)
    if steps.empty:
        return pd.DataFrame(columns=SHARES)
    out = steps.groupby(["arm", "c", "width"], as_index=False).agg(
        iterations=("dur_s", "size"),
        seconds=("dur_s", "sum"),
        tokens=("committed_tokens", "sum"),
        requests=("bs", "sum"),
    )
    whole = out.groupby(["arm", "c"])[["iterations", "seconds"]].transform("sum")
    out["share"] = out["iterations"] / whole["iterations"]
    out["time_share"] = out["seconds"] / whole["seconds"]
    out["per_request"] = out["tokens"] / out["requests"]
    out["iteration_s"] = out["seconds"] / out["iterations"]
    rank = {a: i for i, a in enumerate(roles)}
    return out.sort_values(
        ["arm", "c", "width"],
        key=lambda k: k.map(rank) if k.name == "arm" else k,
        ignore_index=True,
    )[SHARES]


def why(recorded: pd.DataFrame, best: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Where a policy differs from the best fixed width: in the same width, or by other widths.

    Both compare output rates of iterations at equal batch sizes, so that it does not matter which
    sizes a width met. With ``w`` the best fixed width, and sums over batch sizes in which both
    sides ran::

        same_width   = sum(tokens at w) / sum(time at w x rate of the fixed arm)
        other_widths = sum(tokens of all widths) / sum(time of all widths x own rate at w)

    The first holds what the deployment costs (at width 1 the draft layer still follows the text),
    the second what choosing gains or loses, exploration included.

    Parameters
    ----------
    recorded
        `kvtop_lib.iterations.recorded`.
    best
        `kvtop_lib.policies.best_fixed`.
    roles
        `kvtop_lib.policies.roles`.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``best`` (arm), ``width`` (its), ``at_width`` (share of the policy's
        iterations that ran it), ``same_width``, ``other_widths``; NaN where a side never ran.
    """
    steps, rows = _steps(recorded, roles), []
    for role in (r for r in roles.values() if r.kind != "fixed"):
        for top in best.dropna(subset=["arm"]).itertuples():
            here = steps[steps["c"] == top.c]
            own, fixed = here[here["arm"] == role.arm], here[here["arm"] == top.arm]
            if own.empty:
                continue
            at = own[own["width"] == top.width]
            rows.append(
                {
                    "arm": role.arm, "c": top.c, "best": top.arm, "width": int(top.width),
                    "at_width": len(at) / len(own), "same_width": _against(at, fixed),
                    "other_widths": _against(own, at),
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=WHY)


def _steps(recorded: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    steps = recorded[recorded["mode"].isin(STEPS) & recorded["arm"].isin(list(roles))]
    return steps[steps["width"].notna()].astype({"width": int}) if len(steps) else steps


def _against(own: pd.DataFrame, other: pd.DataFrame) -> float:
    """Tokens of `own` over what its time would have given at `other`'s rates, by batch size."""
    a, b = (d.groupby("bs")[["committed_tokens", "dur_s"]].sum() for d in (own, other))
    a, b = a.loc[a.index.intersection(b.index)], b.loc[b.index.intersection(a.index)]
    expected = (a["dur_s"] * b["committed_tokens"] / b["dur_s"]).sum()
    return float(a["committed_tokens"].sum() / expected) if expected else np.nan

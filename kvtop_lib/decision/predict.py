"""Predictions beside measurements: the fitted cost model, and the published speed-up formulae."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from kvtop_lib import costmodel, iterations
from kvtop_lib.stats import OPEN, block_ratios
from kvtop_lib.store import Run, read_json
from kvtop_lib.terms import KvtopError

_HELD = ["arm", "c", "block", "line", "iteration_s", "predicted_s", "error"]
_NEEDED = ["decoding_mean", "iteration_s_p50", "tokens_per_step"]
_DRAFTING = ["ngram_s", "draft_s", "draft_extend_s"]  # what an iteration spends on proposing


def widths(manifest: dict[str, Any]) -> dict[str, float]:
    """Tokens verified per request and forward of every arm; NaN where a policy changes them."""
    found = {}
    for arm, params in (manifest.get("arms") or {}).items():
        draft = params.get("draft") or {}
        policy, _, fixed = str(draft.get("policy") or "fixed").partition(":")
        width = fixed or draft.get("width") or 1
        found[arm] = float(width) if policy == "fixed" else float("nan")
    return found


def predict(run: Run, points: pd.DataFrame, baseline: str = "baseline") -> dict[str, Any]:
    """The cost model fitted on half of the closed-loop points, and what it and others predict.

    Parameters
    ----------
    run
        Its manifest and, where there are any, recorded iterations.
    points
        Its results with ``c`` as the size of the load.
    baseline
        The arm without drafting.

    Returns
    -------
    dict
        ``fitted``; with it ``seconds`` (coefficients), errors on the points held out,
        ``predicted`` (ratios over load and crossover per arm) and ``formulae`` (`beside`);
        without it ``reason``.
    """
    width = widths(run.manifest)
    ok = points[(points["status"] == "ok") & ~points["workload"].str.endswith(OPEN)]
    ok = ok.reindex(columns=[*points.columns, *(k for k in _NEEDED if k not in points)])
    ok = ok.assign(width=[width.get(a, 1.0) for a in ok["arm"]]).dropna(subset=["width"])
    try:
        model, held = costmodel.tested(costmodel.from_results(ok, None))
    except KvtopError as e:
        return {"fitted": False, "reason": str(e)}
    costs = draft_costs(iterations.recorded(run), baseline) or _kept_costs(run)
    drafting = ok[ok["width"] > 1]
    predicted = []
    for arm, own in drafting.groupby("arm", sort=True):
        by = own.groupby("c")[_NEEDED].mean()
        tokens = by["tokens_per_step"].astype(float).mean()
        batch = by["decoding_mean"].astype(float)
        ratio = model.ratio(batch, int(width[arm]), 0.0, tokens)
        predicted.append(
            {
                "arm": arm, "tokens_per_step": tokens, "loads": list(by.index),
                "ratio": list(ratio), "crossover": costmodel.crossing(by.index, ratio),
            }
        )  # fmt: skip
    return {
        "fitted": True,
        "seconds": {k: getattr(model, k) for k in costmodel.TERMS},
        "fitted_points": model.points,
        "held_out_points": len(held),
        "median_error": float(held["error"].abs().median()) if len(held) else None,
        "largest_error": float(held["error"].abs().max()) if len(held) else None,
        "held_out": held[_HELD].to_dict("records"),
        "predicted": predicted,
        "formulae": beside(ok, model, costs, baseline),
    }


def draft_costs(recorded: pd.DataFrame, baseline: str = "baseline") -> dict[tuple, float]:
    """Time of an iteration's drafting over one forward of the baseline, by arm and load.

    Parameters
    ----------
    recorded
        `kvtop_lib.iterations.recorded`; drafting is its parts draft, draft-extend and n-gram.

    Returns
    -------
    dict
        ``(arm, c)`` -> ratio, of the loads at which the baseline was recorded too.
    """
    steps = recorded[recorded["mode"].isin(iterations.STEPS)]
    if steps.empty:
        return {}
    spent = steps.assign(spent=steps[_DRAFTING].sum(axis=1)).groupby(["arm", "c"])["spent"].mean()
    forward = steps[steps["arm"] == baseline].groupby("c")["target_s"].mean()
    return {(a, c): float(x / forward[c]) for (a, c), x in spent.items() if c in forward.index}


def _kept_costs(run: Run) -> dict[tuple, float]:
    """`draft_costs` by the decision.json of a copy, which holds no iterations."""
    file = run.path / "decision.json"
    kept = read_json(file) if file.is_file() else {}
    rows = (kept.get("cost_model") or {}).get("formulae") or []
    return {(r["arm"], r["c"]): r["cost"] * r["depth"] for r in rows if r.get("cost") is not None}


def beside(
    points: pd.DataFrame,
    model: costmodel.CostModel,
    drafting: dict[tuple, float],
    baseline: str = "baseline",
) -> list[dict[str, Any]]:
    """What the published formulae predict at every load, beside the model and the measurement.

    Parameters
    ----------
    points
        Points of arms of one width: ``arm``, ``c``, ``width``, ``decoding_mean``,
        ``accept_by_position``, ``tokens_per_step``, ``verify_steps``, ``output_tok_s``.
    model
        The fitted cost model.
    drafting
        `draft_costs`; empty without recorded iterations.

    Returns
    -------
    list of dict
        Per drafting arm and load: ``depth`` (drafts per step), ``alpha`` (acceptance rate of a
        tried draft), ``cost`` (one draft over one forward, None where not recorded), and the
        predicted ratios ``model`` (measured tokens per iteration), ``goodput``, ``leviathan``
        (None without ``cost``) beside
        ``measured`` (mean ratio of output rates within blocks).
    """
    if "accept_by_position" not in points or not (points["arm"] == baseline).any():
        return []
    ratios = block_ratios(points, "output_tok_s", baseline)
    measured = np.exp(np.log(ratios["ratio"]).groupby([ratios["arm"], ratios["c"]]).mean())
    rows = []
    known = points[(points["width"] > 1) & points["accept_by_position"].notna()]
    for (arm, c), own in known.groupby(["arm", "c"], sort=True):
        if (arm, c) not in measured.index:
            continue
        depth = int(own["width"].iloc[0]) - 1
        alpha = costmodel.acceptance_rate(own["accept_by_position"], own["verify_steps"])
        batch = float(own["decoding_mean"].mean())
        spent = drafting.get((arm, c))
        cost = None if spent is None else spent / depth
        rows.append(
            {
                "arm": arm, "c": float(c), "depth": depth, "alpha": alpha, "cost": cost,
                "model": float(model.ratio(batch, depth + 1, 0.0, own["tokens_per_step"].mean())),
                "goodput": float(costmodel.goodput_ratio(alpha, depth, batch, 0.0, model)),
                "leviathan": None if cost is None else float(
                    costmodel.leviathan(alpha, depth, cost)
                ),
                "measured": float(measured[arm, c]),
            }
        )  # fmt: skip
    return rows

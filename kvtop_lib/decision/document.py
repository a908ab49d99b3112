"""``decision.json``: the whole decision of a run, from its results and manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from kvtop_lib import stats
from kvtop_lib.ablation import causes
from kvtop_lib.decision.command import server_command_text
from kvtop_lib.decision.judge import BASELINE, RULE, Target, judge, ranges, recommend
from kvtop_lib.decision.predict import predict
from kvtop_lib.stats import load_axis
from kvtop_lib.store import Run, write_json
from kvtop_lib.terms import SCHEMA, KvtopError

_SHOWN = "c n ratio low high p_higher verdict meets baseline_meets detectable lines".split()

NOTHING = (
    "no point of 'baseline' is ok, so there is nothing to compare with; `make retry` measures such "
    "points again, best on an idle machine"
)


def decide(
    run: Run,
    targets: Mapping[str, Mapping[str, float]] | None = None,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """The decision of a run.

    Parameters
    ----------
    run
        Its ``results.jsonl`` and ``manifest.json`` are read; recorded iterations, where there are
        any, add the cost of a draft and nothing else.
    targets
        Latency targets by name, limits in seconds by column (`Target`); throughput alone is
        always judged.
    confidence
        Of the intervals.

    Returns
    -------
    dict
        ``nothing`` (why there is nothing to decide, else null), ``rule``, ``how_sure``,
        ``noise_floor``, ``multiplicity``, ``cost_model``, ``causes`` (of arms that differ, where
        isolating pairs were measured) and ``decisions``:
        per workload and target the arms with their ``ranges``, ``crossover`` and ``points``, and
        ``recommended`` with a server ``command`` (null for a manifest that does not say enough;
        ``no_command`` says what).

    Raises
    ------
    KvtopError
        When the run has no result.
    """
    results, manifest = run.results(), run.manifest
    if results.empty:
        raise KvtopError(f"run {run.name!r} has no point in results.jsonl yet; run the sweep")
    wanted = [Target(), *(Target(n, limits) for n, limits in (targets or {}).items())]
    points, decisions, whole = load_axis(results), [], []
    made_up, idle = simulated(manifest), undrafted(manifest)
    for workload, own in points[~points["arm"].isin(made_up)].groupby("workload", sort=True):
        if not ((own["arm"] == BASELINE) & (own["status"] == "ok")).any():
            continue
        turns = stats.crossovers(stats.block_ratios(own, "output_tok_s", BASELINE), confidence)
        turn = dict(zip(turns["arm"], turns["crossover"], strict=True))
        whole.append(judge(own, wanted[0], confidence))
        for target in wanted:
            judged = judge(own, target, confidence)
            chosen = recommend(judged[~judged["arm"].isin(idle)])
            chosen |= _command(manifest, chosen["arm"])
            decisions.append(
                {
                    "workload": workload,
                    "target": {"name": target.name, "limits": dict(target.limits)},
                    "arms": [_arm(a, g, turn.get(a)) for a, g in judged.groupby("arm", sort=True)],
                    "recommended": chosen,
                }
            )
    if not decisions:
        whole = [stats.summarise(pd.DataFrame(columns=[*stats.GROUP, "block", "ratio"]))]
    summary = pd.concat(whole, ignore_index=True)
    explained = causes(points, confidence=confidence).to_dict("records")
    return {
        "schema": SCHEMA,
        "run": manifest.get("run") or run.name,
        "commit": (manifest.get("git") or {}).get("commit"),
        "nothing": None if decisions else NOTHING,
        "rule": RULE,
        "confidence": confidence,
        "how_sure": stats.how_sure(summary, confidence),
        "noise_floor": str(stats.noise_floor(summary)),
        "multiplicity": stats.multiplicity(summary, confidence),
        "cost_model": predict(run, points, BASELINE),
        "causes": [c for c in explained if c["arm"] not in made_up],
        "decisions": decisions,
    }


def simulated(manifest: dict[str, Any]) -> set[str]:
    """Arms whose acceptance is simulated: they show a cost and can be no one's default."""
    arms = manifest.get("arms") or {}
    return {
        a for a, p in arms.items() if (p.get("draft") or {}).get("simulated_accept_len") is not None
    }


def undrafted(manifest: dict[str, Any]) -> set[str]:
    """Arms that never draft: they isolate what drafting changes beside, and answer no question."""
    drafts = {a: p.get("draft") or {} for a, p in (manifest.get("arms") or {}).items()}
    return {
        a for a, d in drafts.items() if d.get("method") == "none" or d.get("policy") == "fixed:1"
    }


def _command(manifest: dict[str, Any], arm: str) -> dict[str, str | None]:
    try:
        return {"command": server_command_text(manifest, arm), "no_command": None}
    except KvtopError as e:
        return {"command": None, "no_command": str(e)}


def _arm(arm: str, judged: pd.DataFrame, turn: stats.Crossover | None) -> dict[str, Any]:
    crossover = None
    if turn is not None:
        crossover = {**vars(turn), "text": str(turn)}
    return {
        "arm": arm,
        "ranges": ranges(judged),
        "crossover": crossover,
        "points": judged[_SHOWN].to_dict("records"),
    }


def table(decision: dict[str, Any]) -> pd.DataFrame:
    """The decision as one row per workload, target, arm and range of loads."""
    rows = []
    for one in decision["decisions"]:
        for arm in one["arms"]:
            turn = (arm["crossover"] or {}).get("text", "one load")
            for part in arm["ranges"]:
                rows.append(
                    {
                        "workload": one["workload"], "target": one["target"]["name"],
                        "arm": arm["arm"], **part, "crossover": turn,
                        "default": one["recommended"]["arm"],
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def write_decision(
    run: Run, targets: Mapping[str, Mapping[str, float]] | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Write ``decision.json`` into the run (or `out`); errors as in `decide`."""
    found = decide(run, targets)
    write_json(out or run.path / "decision.json", found)
    return found

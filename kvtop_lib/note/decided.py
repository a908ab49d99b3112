"""Crossover and decision: from which load to which an arm is better, and what to run."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from kvtop_lib import figures
from kvtop_lib.decision.judge import BASELINE, RULE
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import NBSP, Value, listing, say
from kvtop_lib.stats import OPEN

_WORD = {"missed": "misses the target", "indistinguishable": "no difference detected",
         "unknown": "not told from noise"}  # fmt: skip


def by_lanes(ev: Evidence) -> list[tuple[int, dict[str, Any]]]:
    """Decisions on points by lanes, with their places in decision.json; throughput comes first."""
    every = ev.decision["decisions"] if ev.decision else []
    return [(i, one) for i, one in enumerate(every) if not one["workload"].endswith(OPEN)]


def decision(ev: Evidence) -> Plate | None:
    """Verdicts by arm and load, and the ranges that they form."""
    found = by_lanes(ev)
    if not found:
        return None
    first = found[0][1]
    rows = [
        {"arm": arm["arm"], "title": str(ev.title(arm["arm"])), **point}
        for arm in first["arms"]
        for point in arm["points"]
    ]
    if not rows:
        return None
    data = pd.DataFrame(rows).astype({"c": int})
    data = data[["arm", "title", "c", "verdict", "ratio", "low", "high", "p_higher", "n", "lines"]]
    chart = figures.verdicts(data.drop(columns="lines"), ev.titles)
    metric = say("{rule}", rule=Value(RULE, "kvtop_lib.decision:RULE"))
    sheet = pd.DataFrame([row for place in found for row in _ranges(ev, *place, len(found) > 1)])
    return Plate("decision", (chart,), data, caption(ev, *found[0]), metric, sheet=sheet)


def load(c: float, source: str) -> Value:
    """``c = 8`` out of the decision; between measured loads with three digits."""
    return Value(f"c{NBSP}={NBSP}{c:.3g}", f"decision.json#{source}", float(c))


def _ranges(ev: Evidence, i: int, one: dict[str, Any], several: bool) -> list[dict[str, Any]]:
    rows = []
    for j, arm in enumerate(one["arms"]):
        where = f"decisions.{i}.arms.{j}"
        for k, part in enumerate(arm["ranges"]):
            ends = {e: load(part[e], f"{where}.ranges.{k}.{e}") for e in ("from", "to")}
            name = one["target"]["name"]
            target = {"target": Value(name, f"decision.json#decisions.{i}.target.name")}
            verdict = _WORD.get(part["verdict"], part["verdict"])
            rows.append({**(target if several else {}), "arm": ev.title(arm["arm"]), **ends,
                         "verdict": say("{v}", v=verdict)})  # fmt: skip
    return rows


def caption(ev: Evidence, i: int, one: dict[str, Any]) -> Caption:
    """Claim: the default and why. Body: the reach of other arms, and the crossover."""
    chosen, where = one["recommended"], f"decisions.{i}.recommended"
    reason = Value(chosen["reason"], f"decision.json#{where}.reason")
    if chosen["arm"] == BASELINE:
        claim = say("By the rule, drafting is not the default: {r}.", r=reason)
    else:
        claim = say("By the rule, {arm} is the default: {r}.",
                    arm=ev.title(chosen["arm"]), r=reason)  # fmt: skip
    parts = []
    if chosen["up_to"]:
        reach = [
            say("{a} up to {c}", a=ev.title(a), c=load(c, f"{where}.up_to.{a}"))
            for a, c in chosen["up_to"].items()
        ]
        parts.append(say("Better at some load and worse at none: {reach}.", reach=listing(reach)))
    parts += [turn(ev, i, j, arm) for j, arm in enumerate(one["arms"]) if arm["arm"] == ev.primary]
    for key in ("noise_floor", "multiplicity"):
        text = str(ev.decision[key])
        parts.append(say("{t}.", t=Value(text[:1].upper() + text[1:], f"decision.json#{key}")))
    return claim, Markup(" ").join(p for p in parts if p)


def turn(ev: Evidence, i: int, j: int, arm: dict[str, Any]) -> Markup | None:
    """Crossover of an arm with its interval, in one sentence; None with a single load."""
    if not arm["crossover"]:
        return None
    text = Value(arm["crossover"]["text"], f"decision.json#decisions.{i}.arms.{j}.crossover.text")
    return say("{a}: {t}.", a=ev.title(arm["arm"]), t=text)

"""Ablations: pairs of arms that differ in one possible cause, and whether they move the result."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from kvtop_lib import stats, tables
from kvtop_lib.ablation import ISOLATIONS, Isolation
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, percent, say
from kvtop_lib.stats import OPEN

_WORD = {
    "higher": "raises output",
    "lower": "lowers output",
    "none": "no difference detected",
    "unknown": "not told from noise",
}


def measured_pairs(ev: Evidence) -> list[Isolation]:
    """Isolating pairs of which both arms have points."""
    there = set() if ev.quoted else set(ev.points["arm"])
    return [one for one in ISOLATIONS if {one.arm, one.reference} <= there]


def pairs(ev: Evidence) -> pd.DataFrame:
    """Ratio of every isolating pair by load: rows of `tables.ratios`, cause and verdict."""
    found = []
    for one in measured_pairs(ev):
        frame = tables.ratios(ev.points, baseline=one.reference)
        own = frame[(frame["arm"] == one.arm) & (frame["n"] > 0)]
        if len(own):
            bounds = own.assign(
                ratio=own["mean"].astype(float),
                **{k: pd.to_numeric(own[k]) for k in ("low", "high")},
            )
            judged = stats.verdicts(bounds, ev.noise)
            found.append(own.assign(cause=one.cause, reference=one.reference, verdict=judged))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def ablation(ev: Evidence) -> Plate | None:
    """Table of the isolating pairs by load."""
    found = pairs(ev)
    if found.empty:
        return None
    columns = ["cause", "arm", "reference", "c", "mean", "low", "high", "n", "verdict", "lines"]
    sheet = pd.DataFrame([_row(ev, row) for _, row in found.iterrows()])
    metric = say("output throughput of the arm with the cause over the one without, within blocks")
    return Plate(
        "ablation", (), found[columns], caption(ev, found), metric, numbered=False, sheet=sheet,
        label="Table",
    )  # fmt: skip


def _row(ev: Evidence, row: pd.Series) -> dict[str, object]:
    source = ev.cite_ratio(row["arm"], "output_tok_s", row["lines"])
    interval = "–"
    if not pd.isna(row["low"]):
        text = f"{percent(row['low'])} to {percent(row['high'])}"
        interval = Value(text, "kvtop_lib.stats:summarise")
    return {
        "cause": row["cause"], "load": ev.load_value(row["c"]),
        "change": Value(percent(row["mean"]), source, float(row["mean"])), "interval": interval,
        "what it does": _WORD[row["verdict"]],
    }  # fmt: skip


def caption(ev: Evidence, found: pd.DataFrame) -> Caption:
    """Claim: what the pairs allow to conclude on the headline's arm. Body: on the others."""
    every = (ev.decision or {}).get("causes") or []
    mine = [(i, x) for i, x in enumerate(every) if not x["workload"].endswith(OPEN)]
    mine.sort(key=lambda x: (x[1]["arm"] != ev.primary, -x[1]["c"]))
    said = [_conclusion(ev, i, x) for i, x in mine]
    missing = len(ISOLATIONS) - found[["arm", "reference"]].drop_duplicates().shape[0]
    text = say(
        "Each row is a pair of arms that differ in one thing; a cause is named only when its pair "
        "alone moves the result in the direction to be explained."
    )
    if any(i.bound for i in measured_pairs(ev)):
        text += say(
            " Where acceptance is simulated the rows say what drafting costs and could yield at "
            "most; they name no cause."
        )
    if missing:
        n = Value(str(missing), "kvtop_lib.ablation:ISOLATIONS")
        text += say(" Pairs that this run lacks: {n}.", n=n)
    if not said:
        return say(
            "No drafting arm differs from the baseline clearly, so no cause is sought."
        ), text
    return said[0], Markup(" ").join([*said[1:], text])


def _conclusion(ev: Evidence, i: int, one: dict) -> Markup:
    what = Value(one["conclusion"], f"decision.json#causes.{i}.conclusion")
    side = "ahead of" if one["effect"] == "higher" else "behind"
    return say(
        "{arm} is {side} the baseline at {c}; {what}.", arm=ev.title(one["arm"]), side=side,
        c=ev.load_value(int(one["c"])), what=what,
    )  # fmt: skip

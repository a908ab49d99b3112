"""Prediction against measurement: a cost model fitted on half of the points, tried on the rest."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from kvtop_lib import figures
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.decided import by_lanes, load
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, percent, quantity, say

_AT = "decision.json#cost_model"
_FORMULAE = say(
    "The published formulae take every draft to be accepted at one rate; the one without a batch "
    "also takes verifying several tokens to cost no more than one, which load takes away. All "
    "speak of decoding, the measured change holds prefills too."
)
_TERMS = {"floor": "per iteration", "verified": "per verified token", "drafted": "per draft"}


def prediction(ev: Evidence) -> Plate | None:
    """Predicted against measured iteration time of the points that were held out."""
    model = (ev.decision or {}).get("cost_model") or {}
    if not model.get("fitted") or not model["held_out"] or not by_lanes(ev):
        return None
    held = pd.DataFrame(model["held_out"]).astype({"c": int})
    data = held.assign(
        title=[str(ev.title(a)) for a in held["arm"]], lines=[[n] for n in held["line"]]
    ).drop(columns="line")
    chart = figures.predicted(data.drop(columns="lines"), ev.titles)
    metric = say(
        "iteration time = a floor + a price per verified token + a price per draft, coefficients "
        "not below zero, least squares of the relative error"
    )
    sheet = formulae(ev, model["formulae"])
    if sheet is not None:
        metric += say(
            ". The table predicts ratios of output rates from expected tokens: Leviathan et al. "
            "({l}) divide them by {one} + depth × one draft's time over one forward of the "
            "baseline; SmartSpec (Liu et al., {s}) by the modelled time of the whole batch",
            l=Value("ICML 2023, theorem 3.8", "kvtop_lib.costmodel:leviathan"),
            s=Value("2024", "kvtop_lib.costmodel:goodput_ratio"),
            one=Value("1", "kvtop_lib.costmodel:leviathan"),
        )
    return Plate(
        "prediction", (chart,), data, caption(ev, model), metric, kind="computed", sheet=sheet
    )


def formulae(ev: Evidence, rows: list[dict[str, Any]]) -> pd.DataFrame | None:
    """Published speed-up formulae, the cost model and the measurement, of the headline's arm.

    None where the arm has several widths or no acceptance by position was recorded.
    """
    found = []
    for i, row in enumerate(rows):
        change = ev.change(row["arm"], int(row["c"])) if row["arm"] == ev.primary else None
        if change is None:
            continue
        at = f"{_AT}.formulae.{i}"
        cell = {
            k: "–" if row[k] is None else Value(percent(row[k]), f"{at}.{k}", row[k])
            for k in ("leviathan", "goodput", "model")
        }
        cost = "–" if row["cost"] is None else share(row["cost"], f"{at}.cost")
        found.append(
            {
                "load": ev.load_value(int(row["c"])),
                "draft accepted": share(row["alpha"], f"{at}.alpha"),
                "draft / forward": cost,
                "Leviathan et al.": cell["leviathan"],
                "SmartSpec": cell["goodput"],
                "cost model": cell["model"],
                "measured": change.percent,
            }
        )
    return pd.DataFrame(found) if found else None


def share(value: float, source: str) -> Value:
    """A share in percent, in words, since ``%`` is a change on this page."""
    return Value(f"{100 * value:.1f} percent", source, float(value))


def caption(ev: Evidence, model: dict[str, Any]) -> Caption:
    """Claim: how far the prediction is off. Body: the coefficients, and the crossover."""
    fitted, held = (
        Value(str(model[k]), f"{_AT}.{k}", float(model[k]))
        for k in ("fitted_points", "held_out_points")
    )
    claim = say(
        "Fitted on {n} points, a cost model misses the iteration time of the other {m} by {median} "
        "in the median and by {most} at most.",
        n=fitted, m=held,
        median=share(model["median_error"], f"{_AT}.median_error"),
        most=share(model["largest_error"], f"{_AT}.largest_error"),
    )  # fmt: skip
    seconds = model["seconds"]
    prices = [
        say("{v} {what}", v=Value(quantity(1e3 * seconds[k], "ms"), f"{_AT}.seconds.{k}",
                                  float(seconds[k])), what=what)
        for k, what in _TERMS.items()
    ]  # fmt: skip
    body = [say("Its terms: {p}.", p=listing(prices))]
    for i, one in enumerate(model["predicted"]):
        if one["arm"] == ev.primary:
            body += [_ratio(ev, i, one), _crossing(ev, i, one)]
    mine = [x for x in model["formulae"] if x["arm"] == ev.primary]
    if mine:
        body.append(_FORMULAE)
    if any(x["cost"] is None for x in mine):
        body.append(say("Where iterations were not recorded, a draft has no known cost (–)."))
    return claim, Markup(" ").join(x for x in body if x)


def _ratio(ev: Evidence, i: int, one: dict[str, Any]) -> Markup | None:
    """Predicted and measured change at the highest load."""
    c, ratio = int(one["loads"][-1]), float(one["ratio"][-1])
    measured = ev.change(one["arm"], c)
    if measured is None:
        return None
    last = len(one["ratio"]) - 1
    said = Value(percent(ratio), f"{_AT}.predicted.{i}.ratio.{last}", ratio)
    return say(
        "At {c} it predicts {p} for {arm}; measured: {m}.",
        c=ev.load_value(c), p=said, arm=ev.title(one["arm"]), m=measured.percent,
    )  # fmt: skip


def _crossing(ev: Evidence, i: int, one: dict[str, Any]) -> Markup | None:
    """Predicted and measured crossover."""
    place, decided = by_lanes(ev)[0]
    turns = [(j, a["crossover"]) for j, a in enumerate(decided["arms"]) if a["arm"] == one["arm"]]
    if not turns or not turns[0][1]:
        return None
    j, turn = turns[0]
    where = f"decisions.{place}.arms.{j}.crossover.load"
    found = load(turn["load"], where) if turn["kind"] == "crosses" else None
    guess = one["crossover"]
    said = load(guess, f"cost_model.predicted.{i}.crossover") if guess == guess else None
    if said and found:
        return say("It places the crossover at {p}; measured: {m}.", p=said, m=found)
    if said:
        return say("It places a crossover at {p}, where the measurement has none.", p=said)
    if found:
        return say("It predicts no crossover at these loads; measured: {m}.", m=found)
    return say("It predicts no crossover at these loads, and none was measured.")

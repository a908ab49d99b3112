"""What a run planned against what it has: loads without a valid pair, points not yet measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from markupsafe import Markup

from kvtop_lib import stats, tables
from kvtop_lib.note.change import Change
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.params.shape import load_name, parse_load
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError

FEW = 4
"""Lanes up to which the page says "few requests"; a convention of its words."""

_FILE = "plan.json"
_IDENTITY = ["arm", "block", "workload", "load"]


def loads(ev: Evidence) -> list[float]:
    """Loads of the page's kind at which the headline's arm and its reference were to be measured.

    Those of the profile and those at which the arm has a point, rising.
    """
    stated, only = (tables.pick(ev.manifest, f"profile.{k}") for k in ("loads", "only"))
    only = only if isinstance(only, dict) else {}
    try:
        every = [
            parse_load(x) for x in stated or []
            if all(x in only.get(a, [x]) for a in (ev.reference, ev.primary))
        ]  # fmt: skip
    except (ValueError, TypeError) as e:
        where = ev.run.path / "manifest.json"
        raise KvtopError(f"{where}: profile.loads holds what is no load ({e})") from e
    frame = pd.DataFrame({
        "load": [load_name(x) for x in every],
        "c": [x if isinstance(x, int) else None for x in every],
    })  # fmt: skip
    own = ev.points.loc[ev.points["arm"] == ev.primary, "c"]
    return sorted({*own.tolist(), *stats.on_axis(frame, ev.axis)["c"].tolist()})


def unpaired(ev: Evidence) -> list[float]:
    """Planned loads at which no block has a valid point of both."""
    ok = ev.points[ev.points["status"] == "ok"]
    base, own = (
        set(ok.loc[ok["arm"] == arm, ["c", "block"]].itertuples(index=False, name=None))
        for arm in (ev.reference, ev.primary)
    )
    paired = {c for c, _ in base & own}
    return [c for c in loads(ev) if c not in paired]


def gaps(ev: Evidence) -> Markup | None:
    """Sentence on the planned loads without a valid pair; None where every load has one."""
    left = [_load(ev, c) for c in unpaired(ev)]
    if not left:
        return None
    have = "has" if len(left) == 1 else "have"
    return say("{loads} {have} no valid pair of points with the baseline.",
               loads=listing(left), have=have)  # fmt: skip


def _load(ev: Evidence, c: float) -> Value:
    """A planned load, cited to the profile where it has no point."""
    if c in ev.loads:
        return ev.load_value(c)
    return ev.load_text(c, f"{ev.manifest_at}:profile.loads")


def lowest(ev: Evidence, changes: list[Change]) -> Markup:
    """``the lowest load``, or which one it is where lower ones have no valid pair."""
    return _end(ev, changes, 0)


def highest(ev: Evidence, changes: list[Change]) -> Markup:
    """``the highest load``, or which one it is where higher ones have no valid pair."""
    return _end(ev, changes, -1)


def _end(ev: Evidence, changes: list[Change], at: int) -> Markup:
    words = ("the lowest load", "the highest load")[at]
    if changes[at].c == loads(ev)[at]:
        return say("{w}", w=words)
    return say("{w} with a valid pair ({c})", w=words, c=ev.load_value(changes[at].c))


def few(ev: Evidence, changes: list[Change]) -> Markup:
    """When: ``while few requests are in flight``, or at which load where that is not so."""
    low, text = changes[0].c, lowest(ev, changes)
    if low != loads(ev)[0]:
        return say("at {t}", t=text)
    few = say("while few requests are in flight")
    return few if low <= FEW else say("at {t} ({c})", t=text, c=ev.load_value(low))


def many(ev: Evidence, changes: list[Change]) -> Markup:
    """When: ``under load``, or at which load where that is not so."""
    high, text = changes[-1].c, highest(ev, changes)
    if high != loads(ev)[-1]:
        return say("at {t}", t=text)
    return say("under load") if high > FEW else say("at {t} ({c})", t=text, c=ev.load_value(high))


def every(ev: Evidence, changes: list[Change]) -> Markup:
    """``load we measured``, for a sentence on all of them, or what they are instead."""
    whole = len(changes) == len(loads(ev))
    if ev.axis == stats.RATES:
        return say("arrival rate {w}", w="we measured" if whole else "that can be compared")
    return say("load {w}", w="we measured" if whole else "with a valid pair")


def unmeasured(ev: Evidence) -> tuple[Value, Value] | None:
    """Points of plan.json without a line of results.jsonl that counts, and all planned ones.

    None where there is no plan or every point of it has been measured, with whatever status.
    """
    file = ev.run.path / _FILE
    if ev.quoted or not file.is_file():
        return None
    try:
        wanted = {
            (step["arm"], int(step["block"]), step["workload"], load)
            for step in read_json(file)["lifetimes"]
            for load in step["loads"]
        }
    except (KeyError, TypeError, ValueError) as e:
        raise KvtopError(f"{file} is no plan ({e}); `make keys` writes it again") from e
    done = set(ev.run.results()[_IDENTITY].itertuples(index=False, name=None))
    left = len(wanted - done)
    if not left:
        return None
    return (
        Value(str(left), f"{_FILE}:count(unmeasured)", float(left)),
        Value(str(len(wanted)), f"{_FILE}:count(*)", float(len(wanted))),
    )


def unfinished(ev: Evidence) -> Markup | None:
    """Sentence on a run that has not ended; None for one that has."""
    found = unmeasured(ev)
    if found is None:
        return None
    return say(
        "The run is not finished: {n} of {all} planned points {are} not measured yet.",
        n=found[0], all=found[1], are="is" if found[0].value == 1 else "are",
    )  # fmt: skip


def standing(run: Path | str) -> list[str]:
    """What of a run is missing or not ok, a sentence each, for who has just rendered its page."""
    ev = Evidence.load(run)
    said = [text.striptags()] if (text := unfinished(ev)) else []
    if bad := int((ev.whole["status"] != "ok").sum()):
        all_ = len(ev.whole)
        said.append(f"points that are not ok: {bad} of {all_}; `make retry` measures them again")
    return said

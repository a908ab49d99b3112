"""Figures that only a published table with a speed per request allows."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from kvtop_lib import figures, tables
from kvtop_lib.audit import audit
from kvtop_lib.note.claims import at, shape
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.note.quoted.evidence import QuotedEvidence
from kvtop_lib.terms import KvtopError

EACH = "per_request_tok_s"

_COURSE = {
    "gain": "is higher at every load",
    "loss": "is lower at every load",
    "same": "is the same at every load",
    "gain_then_loss": "is higher at low load and lower at high load",
    "loss_then_gain": "is lower at low load and higher at high load",
    "gain_fades": "is higher at low load and the same at high load",
    "loss_fades": "is lower at low load and the same at high load",
    "gain_grows": "is the same at low load and higher at high load",
    "loss_grows": "is the same at low load and lower at high load",
}


def course(changes: list) -> str:
    """Course of a change over rising load, in words."""
    return _COURSE.get(shape(changes), "goes up and down with load")


def per_request(ev: QuotedEvidence) -> Plate | None:
    """Speed of one request over load."""
    data = ev.by_load(EACH)
    if not data["n"].any() or ev.primary is None:
        return None
    changes = ev.changes(ev.primary, EACH)
    how = _faster(changes)
    claim = say("With {arm} a single request {how}.", arm=ev.title(ev.primary), how=how)
    ends = list(dict.fromkeys([changes[0], changes[-1]])) if changes else []
    body = say("{ends}.", ends=listing([at(x, ev) for x in ends])) if ends else Markup("")
    chart = figures.over_load(data, y_title="output of one request (tok/s)")
    return Plate("per_request", (chart,), data, (claim, body), _metric(ev))


def _faster(changes: list) -> str:
    return {
        "gain": "is faster at every load",
        "loss": "is slower at every load",
        "same": "is as fast at every load",
    }.get(shape(changes), "is faster at some loads and slower at others")


def views(ev: QuotedEvidence) -> Plate | None:
    """Both views of one change: output of the server and speed of a request."""
    if ev.primary is None or not ev.points[EACH].notna().any():
        return None
    names = {"output_tok_s": "Output of the server", EACH: "Speed of one request"}
    parts = [
        tables.ratios(ev.points, column, ev.reference).assign(title=t)
        for column, t in names.items()
    ]
    data = pd.concat(parts, ignore_index=True)
    data = data[data["arm"] == ev.primary].reset_index(drop=True)
    claim = say(
        "Against the {base}, the output of the server {a}; the speed of one request {b}.",
        base=say("baseline"),
        a=course(ev.changes(ev.primary)),
        b=course(ev.changes(ev.primary, EACH)),
    )
    last = ev.loads[-1]
    total, each = (ev.change(ev.primary, last, k) for k in names)
    body = say(
        "At {c}: {t} for the server, {e} for a request. Both can be true only if fewer requests "
        "are active; the next figure counts them.",
        c=ev.load_value(last),
        t=total.percent,
        e=each.percent,
    )
    chart = figures.ratio_to_baseline(data, ["baseline", *names.values()], "against the baseline")
    if not total.ratio < each.ratio:
        body = Markup("")
    return Plate("views", (chart,), data, (claim, body), _metric(ev))


def _metric(ev: QuotedEvidence) -> Markup:
    return say("{m}", m=ev.field("metric"))


def audited(ev: QuotedEvidence) -> dict | None:
    """`kvtop_lib.audit` of the sheet with the claims of its source, None where it cannot be."""
    tests = ev.source.cause.tests if ev.source.cause else ()
    try:
        return audit(ev.run.csv, tests)
    except KvtopError:
        return None


def active(ev: QuotedEvidence) -> Plate | None:
    """Implied number of active requests, by Little's law."""
    found = audited(ev)
    if found is None:
        return None
    lines = {(r.arm, r.c): int(r.line) for r in ev.points.itertuples()}
    rows = [
        {"arm": a["arm"], "title": ev.arms[a["arm"]]["title"], "c": a["concurrency"],
         "mean": a["active"], "low": a["low"], "high": a["high"], "values": [a["active"]], "n": 1,
         "lines": [lines[a["arm"], a["concurrency"]]], "status": "ok", "reason": ""}
        for a in found["active"]
        if a["arm"] in ev.arms
    ]  # fmt: skip
    data = pd.DataFrame(rows)
    caps = [int(t.rpartition("=")[2]) for t in ev.source.cause.tests] if ev.source.cause else []
    chart = figures.active_requests(data, ev.titles, caps)
    metric = say("output of the server over the speed of one request, both as printed")
    return Plate("active", (chart,), data, _said(ev, data), metric, kind="computed")


def implied(ev: QuotedEvidence, row: pd.Series) -> Value:
    """An implied number of active requests with the two cells that it is made of."""
    columns = ev.run.columns(row["arm"])
    cells = f"{columns.output_tok_s}/{columns.per_request_tok_s}"
    where = f"{ev.origin}#L{row['lines'][0]}:{cells}"
    return Value(f"{row['mean']:.1f}", where, float(row["mean"]))


def _said(ev: QuotedEvidence, data: pd.DataFrame) -> tuple[Markup, Markup]:
    """Claim: the most that each arm reaches. Body: what that says about the source's claim."""
    tops = []
    for arm in data["arm"].unique():
        own = data[data["arm"] == arm]
        top = own.loc[own["mean"].idxmax()]
        tops.append(
            say("{n} with {a} (at {c})", n=implied(ev, top), a=ev.title(arm),
                c=ev.load_value(int(top["c"])))
        )  # fmt: skip
    claim = say("The most requests that were active at once: {tops}.", tops=listing(tops))
    body = say(
        "A request that decodes at some speed adds that speed to the output, so output over speed "
        "is a number of requests. Bars, often smaller than the marker, are what the printed "
        "digits allow. "
    )
    primary = data[data["arm"] == ev.primary]
    each = [
        say("{n} at {c}", n=implied(ev, r), c=ev.load_value(int(r["c"])))
        for _, r in primary.iterrows()
    ]
    return claim, body + say("{arm}: {each}.", arm=ev.title(ev.primary), each=listing(each))

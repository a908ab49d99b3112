"""Failures and cancellations: how the requests of the windows ended, beside every rate."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.terms import REQUEST_STATUSES

DRAWN = "aborted_on_purpose"


def ended(ev: Evidence) -> Plate | None:
    """Requests sent in the windows of points that count, by how they ended."""
    counted = [r for r in ev.records if r["status"] == "ok" and tables.pick(r, "counts.ok")]
    if ev.quoted or not counted:
        return None
    rows = [
        {"arm": r["arm"], "load": r["load"], "block": r["block"],
         **{k: int(r["counts"].get(k) or 0) for k in REQUEST_STATUSES},
         DRAWN: int(r.get(DRAWN) or 0), "lines": [int(r["line"])]}
        for r in counted
    ]  # fmt: skip
    data = pd.DataFrame(rows)
    seen = [k for k in (*REQUEST_STATUSES, DRAWN) if k == "ok" or data[k].any()]
    sheet = pd.DataFrame(
        [
            {"arm": ev.title(arm), **{_head(k): _sum(ev, own, k) for k in seen}}
            for arm in ev.arms
            if len(own := data[data["arm"] == arm])
        ]
    )
    metric = say("requests sent in the window, by how they ended")
    return Plate(
        "ended", (), data, caption(ev, data, seen), metric, numbered=False, sheet=sheet,
        label="Table",
    )  # fmt: skip


def _head(key: str) -> str:
    return "drawn to be aborted" if key == DRAWN else key.replace("_", " ")


def _sum(ev: Evidence, rows: pd.DataFrame, key: str) -> Value:
    """Sum over lines; those without the key are not among them."""
    field = key if key == DRAWN else f"counts.{key}"
    known = {int(r["line"]) for r in ev.records if tables.pick(r, field) is not None}
    lines = [n for own in rows["lines"] for n in own if n in known]
    total = int(rows[key].sum())
    return Value(f"{total:,}", ev.cite_sum(field, lines), float(total))


def caption(ev: Evidence, data: pd.DataFrame, seen: list[str]) -> Caption:
    """Claim: whether any did not end well. Body: what was done on purpose, what is left out."""
    bad = [k for k in seen if k not in ("ok", DRAWN)]
    good = _sum(ev, data, "ok")
    if bad:
        parts = [say("{n} {k}", n=_sum(ev, data, k), k=_head(k)) for k in bad]
        claim = say("Not every request ended well: {p}, beside {n} that did.",
                    p=listing(parts), n=good)  # fmt: skip
    else:
        claim = say("Every request that was sent in a window ended well, {n} in all.", n=good)
    body = say(
        "A request that failed is in no throughput that it did not yield, and its missing times "
        "count as infinite."
    )
    if DRAWN in seen:
        body += say(
            " {n} were drawn beforehand to be aborted by the client and are left out of latencies.",
            n=_sum(ev, data, DRAWN),
        )
    if ev.count("ok").value < ev.count().value:
        body += say(
            " {ok} of {all} points are ok and counted here.", ok=ev.count("ok"), all=ev.count()
        )
    return claim, Markup(body)

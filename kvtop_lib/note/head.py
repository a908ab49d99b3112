"""Head of the page: title, standfirst, byline and the headline tiles."""

from __future__ import annotations

from datetime import datetime

from markupsafe import Markup

from kvtop_lib import tables
from kvtop_lib.note import arrivals, caveats, claims, method, planned
from kvtop_lib.note.change import Change
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.parts import Html, Tile, section
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.stats import RATES


def day(ev: Evidence) -> Value | None:
    """Day on which the first point that counts was measured."""
    started = min((r["started_utc"] for r in ev.records if r.get("started_utc")), default=None)
    if started is None:
        return None
    when = datetime.fromisoformat(started)
    return Value(f"{when.day} {when:%B %Y}", f"{ev.origin}:min(started_utc)")


def header(ev: Evidence) -> Html:
    """Kicker, title, standfirst and byline."""
    device = str(tables.pick(ev.manifest, "model.device") or "").upper()
    kicker = [
        say("KVTop"),
        say("speculative decoding"),
        ev.field("model.title"),
        ev.field("model.device", text=device),
    ]
    byline = [day(ev), say("run {r}", r=ev.name), method.commit(ev)]
    says = arrivals if ev.axis == RATES else claims
    return framed(kicker, says.headline(ev), says.standfirst(ev), byline)


def framed(kicker: list, title: Markup, standfirst: Markup, byline: list) -> Html:
    """The head of a page; parts of kicker and byline that are None are left out."""
    return Html(
        Markup(
            '<header><p class="kicker">{}</p><h1>{}</h1><p class="standfirst">{}</p>'
            '<p class="byline">{}</p></header>'
        ).format(_dots(kicker), title, standfirst, _dots(byline))
    )


def _dots(parts: list) -> Markup:
    return Markup(" · ").join(p for p in parts if p)


def tiles(ev: Evidence) -> Html:
    """Lowest load, highest load, waiting, and how much evidence there is."""
    if ev.axis == RATES:
        waits = arrivals.waits(ev)
        ends = list(dict.fromkeys([waits[0], waits[-1]])) if waits else []
        return row([*(wait_tile(ev, x, arrivals.WAIT) for x in ends), _n(ev)])
    changes = claims.primary_changes(ev)
    waits = ev.changes(ev.primary, "ttft_s_p50") if ev.primary else []
    ends = list(dict.fromkeys([changes[0], changes[-1]])) if changes else []
    shown = [gain_tile(ev, x) for x in ends] + [wait_tile(ev, x) for x in waits[-1:]] + [_n(ev)]
    return row(shown)


def row(shown: list[Tile]) -> Html:
    """Tiles beside each other."""
    return section(Markup("").join(t.html() for t in shown), "tiles")


def gain_tile(ev: Evidence, x: Change) -> Tile:
    """Change of throughput at one load."""
    label = say(
        "{c}: {arm} against the baseline, output tok/s", c=ev.load_value(x.c), arm=ev.title(x.arm)
    )
    rest = [y for a in ev.drafting if a != x.arm and (y := ev.change(a, x.c))]
    detail = listing([say("{a} {p}", a=ev.title(y.arm), p=y.percent) for y in rest])
    return Tile(x.percent, label, detail, tone(x))


def wait_tile(ev: Evidence, x: Change, column: str = "ttft_s_p50") -> Tile:
    """Change of the wait for the first token at one load."""
    label = say("{c}: wait for the first token, median", c=ev.load_value(x.c))
    base, arm = (ev.mean(a, x.c, column, "s") for a in (ev.reference, x.arm))
    known = base and arm
    detail = say("{b} becomes {a}", b=base, a=arm) if known else say("only the change is published")
    return Tile(x.percent, label, detail, tone(x, rising_is_bad=True))


def _n(ev: Evidence) -> Tile:
    ok = say("{ok} of {all} points are ok", ok=ev.count("ok"), all=ev.count())
    per = say("windows per point")
    if left := planned.unmeasured(ev):
        ok += say(", {n} are not measured yet", n=left[0])
        per = say("windows planned per point")
    return Tile(say("n = {n}", n=caveats.blocks(ev)), per, ok)


def tone(change: Change, rising_is_bad: bool = False) -> str:
    """CSS tone of a change."""
    if change.verdict == "same":
        return ""
    return "gain" if (change.verdict == "gain") != rising_is_bad else "loss"

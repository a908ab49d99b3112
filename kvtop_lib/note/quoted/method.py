"""Method blocks and evidence lines of a published table, as far as its source states them."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib.note import method
from kvtop_lib.note.parts import definition
from kvtop_lib.note.prose import NBSP, Value, listing, say
from kvtop_lib.note.quoted.evidence import QuotedEvidence

HOW = {**method.HOW, "mtp_ngram": "MTP layer and n-gram drafts"}
"""Methods of drafting, in words; which drafts come first is not stated."""


def layout(ev: QuotedEvidence) -> Markup:
    """Servers and devices; where the source contradicts itself, every version with its place."""
    found = []
    for i, one in enumerate(ev.source.layout):
        text = Value(one.text, f"{ev.run.path.name}#layout.{i}.text")
        place = Value(one.stated_in, f"{ev.run.path.name}#layout.{i}.stated_in")
        found.append(say("{t} ({p})", t=text, p=place) if one.stated_in else say("{t}", t=text))
    if len(found) == 1:
        return found[0]
    return say("stated in more than one way: {ways}", ways=listing(found, "or"))


def commit(ev: QuotedEvidence) -> Markup | None:
    """Commit of the engine that was measured."""
    found = ev.field("commit")
    return found and say("{c}", c=found)


def runtime(ev: QuotedEvidence) -> Markup | None:
    """Engine with commit and options."""
    name, at = ev.field("engine.name"), commit(ev)
    engine = say("{n} @ {c}", n=name, c=at) if at else name
    return method.joined(engine, ev.field("engine.options"))


def arms(ev: QuotedEvidence) -> Markup:
    """Arms, how they draft, and what else they change."""
    found = []
    for name, arm in ev.run.table.arms.items():
        how = say("{h}", h=HOW[arm.draft.method])
        if arm.draft.widths:
            where = f"arms.{name}.draft.widths"
            widths = [
                Value(str(w), ev.cite_field(f"{where}.{i}"), float(w))
                for i, w in enumerate(arm.draft.widths)
            ]
            how += say(", draft widths {w}", w=listing(widths))
        also = ev.field(f"arms.{name}.also")
        tail = say("; also changes {a}", a=also) if also else ""
        found.append(say("{t} ({how}{tail})", t=ev.title(name), how=how, tail=tail))
    return Markup(" · ").join(found)


def repeats(ev: QuotedEvidence) -> Markup:
    """Windows per point."""
    n = ev.field("profile.blocks")
    return say("n = {n} per point", n=n) if n else say("not stated")


def block(ev: QuotedEvidence, metric: Markup) -> Markup:
    """Short method block that stands beside a figure."""
    rows = [
        ("model", method.model(ev)),
        ("layout", layout(ev)),
        ("runtime", runtime(ev)),
        ("arms", arms(ev)),
        ("workload", method.workload(ev)),
        ("metric", metric),
        ("repeats", repeats(ev)),
    ]
    return definition(rows, "method")


def origin(ev: QuotedEvidence) -> Markup:
    """The source: its kind, title and publisher."""
    by = ev.field("source.publisher")
    return say(
        "{kind} “{title}”{by}",
        kind=ev.field("source.kind"),
        title=ev.field("source.title"),
        by=say(" ({p})", p=by) if by else "",
    )


def source(ev: QuotedEvidence, numbers: list[int]) -> Markup:
    """Evidence line: the source's own record, and the lines of the table that we keep of it."""
    run, lines, at = ev.field("run"), ev.field("lines"), commit(ev)
    theirs = method.joined(
        origin(ev),
        run and say("run {r}", r=run),
        lines and say("results.jsonl {n} (not public)", n=lines),
        at,
        by=" · ",
    )
    ours = say(
        "params/published/{file} {n}",
        file=Value(ev.origin, ev.cite_field("file")),
        n=Value(method.ranges(numbers), f"{ev.origin}:lines of this figure"),
    )
    return Markup('<p class="source">Source: {} · {}</p>').format(theirs, ours)


def stated(ev: QuotedEvidence) -> Markup | None:
    """Single statements of the source."""
    found = []
    for i, one in enumerate(ev.source.stated):
        number = float(one.value) if isinstance(one.value, int | float) else None
        text = f"{one.value:g}" if number is not None else one.value
        where = f"{ev.run.path.name}#stated.{i}"
        value = Value(f"{text}{NBSP}{one.unit}".strip(NBSP), f"{where}.value", number)
        found.append(say("{w}: {v}", w=Value(one.what, f"{where}.what"), v=value))
    return method.joined(*found, by="<br>")


def full(ev: QuotedEvidence) -> Markup:
    """The method table at the end."""
    pair = ev.isolation
    rows = [
        ("Model", method.model(ev)),
        ("Hardware, layout", layout(ev)),
        ("Runtime", method.joined(runtime(ev), pair and _other_build(ev, pair))),
        ("Arms", arms(ev)),
        ("Isolation pair", pair and arms(pair)),
        ("Workload", _workload(ev)),
        ("Workload of the pair", pair and _workload(pair)),
        ("Also stated", stated(ev)),
        ("Load", method.loads(ev)),
        ("Metric", ev.field("metric")),
        ("Repeats", repeats(ev)),
    ]
    return definition(rows, "full")


def _other_build(ev: QuotedEvidence, pair: QuotedEvidence) -> Markup | None:
    if ev.run.table.commit == pair.run.table.commit:
        return None
    return say("the isolation pair @ {c}", c=pair.field("commit"))


def _workload(ev: QuotedEvidence) -> Markup | None:
    return method.joined(method.workload(ev), ev.field("workload.description"), by="<br>")

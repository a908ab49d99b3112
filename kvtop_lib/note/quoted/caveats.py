"""What published evidence does not show, worked out from what its source holds and states."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.note.quoted import method
from kvtop_lib.note.quoted.evidence import QuotedEvidence

_WANTED = {
    "ttft_s_p50": "time to first token",
    "tpot_s_p50": "time per output token",
    "per_request_tok_s": "speed of a request",
    "accept_len": "acceptance under load",
    "iteration_s_p50": "iteration time",
    "active_mean": "running and waiting requests",
    "requests_window": "completed, failed and cancelled requests",
}
"""Columns of a results frame that a decision would want -> in words."""


def caveats(ev: QuotedEvidence) -> list[Markup]:
    """Limits of the evidence, the weightiest first; each only when it applies."""
    found = [
        _repeats(ev),
        _one_switch(ev),
        _pair(ev),
        _missing(ev),
        _digits(ev),
        _per_request(ev),
        _layout(ev),
        _range(ev),
        _cause(ev),
        _elsewhere(ev),
        _records(ev),
    ]
    return [text for text in found if text]


def _repeats(ev: QuotedEvidence) -> Markup:
    n, window = ev.field("profile.blocks"), ev.field("profile.window_s", "s")
    if n is None:
        return say(
            "<b>How sure the differences are.</b> The source does not say how often or for how "
            "long a point was measured, so no interval can be given."
        )
    each = say("one {w} window", w=window) if window else say("one window")
    return say(
        "<b>How sure the differences are.</b> Every point is {each} (n = {n}); nothing here says "
        "how far a second run would differ, and the baseline was not run against itself.",
        each=each if n.value == 1 else say("a mean"),
        n=n,
    )


def _one_switch(ev: QuotedEvidence) -> Markup | None:
    also = {}
    for arm in ev.drafting:
        if text := ev.field(f"arms.{arm}.also"):
            also.setdefault(text.text, []).append((arm, text))
    if not also:
        return None
    parts = [
        say("{arms} also changed {also}", arms=listing([ev.title(a) for a, _ in same]),
            also=same[0][1])
        for same in also.values()
    ]  # fmt: skip
    return say(
        "<b>One switch.</b> {parts}. The load sweep compares deployments; its differences are not "
        "those of drafting alone.",
        parts=Markup("; ").join(parts),
    )


def _pair(ev: QuotedEvidence) -> Markup | None:
    pair = ev.isolation
    if pair is None:
        return say(
            "<b>An isolation pair.</b> No pair of points differs in drafting alone, so how much of "
            "a change is due to it stays open."
        )
    text = say(
        "<b>The isolation pair at other loads.</b> It was measured at {at}. These are measured "
        "points of a draft width that stays as it is, not a policy that chooses one",
        at=listing([pair.load_value(c) for c in pair.loads]),
    )
    if ev.run.table.commit != pair.run.table.commit:
        text += say(
            "; it ran on another build ({a}) than the sweep ({b}), so the two share no chart",
            a=method.commit(pair),
            b=method.commit(ev),
        )
    return text + say(".")


def _missing(ev: QuotedEvidence) -> Markup | None:
    absent = [k for k in _WANTED if not ev.points[k].notna().any()]
    if not absent:
        return None
    single = [
        say("{w} ({p} at {c} and no other load)", w=_WANTED[f.metric],
            p=ev.fact(f).percent, c=ev.load_value(f.c))
        for f in ev.source.facts
        if f.metric in absent
    ]  # fmt: skip
    whole = [_WANTED[k] for k in absent if k not in {f.metric for f in ev.source.facts}]
    return say(
        "<b>What was not published.</b> Missing are {what}. Without them the sweep says how much "
        "work came out, not what a user waited for or where the time went.",
        what=listing([*single, *whole]),
    )


def _digits(ev: QuotedEvidence) -> Markup | None:
    if not ev.derived:
        return None
    close = [
        say("{p} ({a}, {c})", p=x.percent, a=ev.title(x.arm), c=ev.load_value(x.c))
        for arm in ev.derived
        for x in ev.changes(arm)
        if x.verdict == "same"
    ]
    return say(
        "<b>Small differences.</b> Ratios were published in whole percent and without a repeat"
        "{close}.",
        close=say("; these are called level: {x}", x=listing(close)) if close else "",
    )


def _per_request(ev: QuotedEvidence) -> Markup | None:
    if not ev.points["per_request_tok_s"].notna().any():
        return None
    return say(
        "<b>What the speed of a request is.</b> The source does not define it. The number of "
        "active requests takes it to be tokens over the time in which a request decodes; over the "
        "whole stay of a request it would be the number in the system."
    )


def _layout(ev: QuotedEvidence) -> Markup | None:
    if len(ev.source.layout) < 2:
        return None
    return say(
        "<b>The layout.</b> The source states it in more than one way; the method table shows each."
    )


def _range(ev: QuotedEvidence) -> Markup:
    return say(
        "<b>Loads outside {a} to {b}.</b> Load is a number of requests kept in flight. No arrival "
        "rate was offered, so nothing here is a queueing result, and no latency target was set.",
        a=ev.load_value(ev.loads[0]),
        b=ev.load_value(ev.loads[-1]),
    )


def _cause(ev: QuotedEvidence) -> Markup:
    text = ev.field("cause.text")
    if text is None:
        return say("<b>The cause.</b> The numbers say where the gain goes, not why.")
    tested = (
        "The table itself can be held against it, see above; an ablation would decide"
        if ev.source.cause.tests
        else "No ablation has tested it"
    )
    return say(
        "<b>The cause.</b> The source offers a candidate: {text}. {tested}. Memory, admission, "
        "reserve and verification each need a comparison of their own before one is named.",
        text=text,
        tested=tested,
    )


def _elsewhere(ev: QuotedEvidence) -> Markup:
    return say(
        "<b>Other models, hosts and traffic.</b> Acceptance and the cost of a draft belong to {m} "
        "under “{w}”. Numbers of other models or layouts cannot be put on one chart with these.",
        m=ev.field("model.title"),
        w=ev.field("workload.title"),
    )


def _records(ev: QuotedEvidence) -> Markup | None:
    text: Value | None = ev.field("source.records")
    return text and say("<b>The raw records.</b> We hold the printed numbers only; {t}.", t=text)

"""What a note does not show, worked out from the state of its evidence."""

from __future__ import annotations

from markupsafe import Markup, escape

from kvtop_lib import tables
from kvtop_lib.note import ablated, hosts, planned, troubles
from kvtop_lib.note.cite import listed
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.stats import RATES


def caveats(ev: Evidence) -> list[Markup]:
    """Limits of the evidence, the weightiest first; each only when it applies."""
    found = [
        _unfinished(ev),
        _repeats(ev),
        _noise_floor(ev),
        _bundles(ev),
        _cpu(ev),
        _model(ev),
        hosts.machines(ev),
        troubles.not_ok(ev),
        troubles.missed_requests(ev),
        troubles.audits(ev),
        _range(ev),
        _not_drawn(ev),
        _greedy(ev),
        _workload(ev),
        _cause(ev),
        hosts.uncommitted(ev),
        hosts.commits(ev),
    ]
    return [text for text in found if text]


def blocks(ev: Evidence) -> Value:
    """Repeats per point: blocks of the profile, else those seen."""
    stated = ev.field("profile.blocks")
    if stated:
        return stated
    n = int(ev.points["block"].nunique())
    return Value(str(n), f"{ev.origin}:distinct(block)", float(n))


def _unfinished(ev: Evidence) -> Markup | None:
    text = planned.unfinished(ev)
    return text and say(
        "<b>The rest of the run.</b> {t} Numbers, intervals and words can change with them.", t=text
    )


def _repeats(ev: Evidence) -> Markup:
    n = blocks(ev)
    if planned.unmeasured(ev):
        return say("<b>How sure the differences are.</b> Every point is to have n = {n} windows, "
                   "each of another server lifetime; not all are measured yet.", n=n)  # fmt: skip
    if n.value == 1:
        return say(
            "<b>How sure the differences are.</b> Every point is one window of one server "
            "lifetime (n = {n}); nothing here says how far a second run would differ.",
            n=n,
        )
    return say(
        "<b>How sure the differences are.</b> Every point has n = {n} blocks; ticks in the "
        "figures show each block. Few launches make wide intervals, and a rare bad one is missed.",
        n=n,
    )


def _noise_floor(ev: Evidence) -> Markup:
    if ev.noise.loads:
        return say(
            "<b>The noise floor.</b> The baseline was also run under another name: {floor}.",
            floor=Value(str(ev.noise), "kvtop_lib.stats:noise_floor"),
        )
    return say(
        "<b>The noise floor.</b> The baseline was not run against itself, so small "
        "differences cannot be told from the noise of the machine."
    )


def _bundles(ev: Evidence) -> Markup:
    if pair := ev.isolation:
        at = listing([pair.load_value(x.c) for x in pair.changes(pair.primary)])
        return say(
            "<b>One switch.</b> The arms are compared as deployments: turning drafting on also "
            "changes draft weights, KV reserved for drafts and what the engine resolves by itself. "
            "Only the core result, at {at}, changes the draft width alone.",
            at=at,
        )
    return say(
        "<b>One switch.</b> Turning drafting on also changes draft weights, KV reserved for "
        "drafts and what the engine resolves by itself. The arms are compared as deployments; "
        "an isolation pair that changes the width alone was not part of this run."
    )


def _cpu(ev: Evidence) -> Markup | None:
    if tables.pick(ev.manifest, "model.device") != "cpu":
        return None
    device = ev.field("model.device", text="CPU")
    return say(
        "<b>A GPU.</b> The engine ran on a {d}, with stand-in kernels where the engine has none "
        "for it. Memory-bound decoding at low load and arithmetic-bound decoding at high load "
        "exist here too, but where they meet is this machine's, not an accelerator's.",
        d=device,
    )


def _model(ev: Evidence) -> Markup | None:
    title = ev.field("model.title")
    if not title:
        return None
    return say(
        "<b>Other models.</b> Acceptance and the cost of a draft belong to {m}. A larger trunk "
        "or a better trained draft layer moves every curve.",
        m=title,
    )


def _range(ev: Evidence) -> Markup:
    low, high = ev.load_value(ev.loads[0]), ev.load_value(ev.loads[-1])
    targets = Markup("") if ev.targets else say(" No latency target was set.")
    if ev.axis == RATES:
        text = say(
            "<b>Rates outside {a} to {b}.</b> Sessions start at random times at a given rate; "
            "a closed loop, in which clients wait for answers, was not measured.",
            a=low, b=high,
        )  # fmt: skip
        return text + targets
    text = say(
        "<b>Loads outside {a} to {b}.</b> Load is a closed loop: a lane sends its next request "
        "when the last has ended.",
        a=low,
        b=high,
    )
    if ev.rates:
        return text + targets
    text += say(" No arrival rate was offered, so nothing here is a queueing result.")
    return text + targets


def _not_drawn(ev: Evidence) -> Markup | None:
    """Points whose load is neither a number of lanes nor one of the rates that are drawn."""
    drawn = {*ev.points["line"], *(ev.rates.points["line"] if ev.rates else ())}
    left = sorted(set(ev.whole["line"]) - drawn)
    if not left:
        return None
    n = Value(str(len(left)), f"{ev.origin}#{listed(left)}:load", float(len(left)))
    return say(
        "<b>Other arrivals.</b> {n} points have arrivals of another kind than those that are "
        "drawn (bursts, steps or recorded times); they are in no figure.",
        n=n,
    )


def _greedy(ev: Evidence) -> Markup:
    return say("<b>Sampling.</b> Every request decodes greedily; sampling accepts fewer drafts.")


def _workload(ev: Evidence) -> Markup | None:
    title = ev.field("workload.title")
    return title and say(
        "<b>Other traffic.</b> The requests are “{w}”; code, chat or long documents "
        "have other acceptance and other prompt lengths.",
        w=title,
    )


def _cause(ev: Evidence) -> Markup | None:
    """Said where no pair of arms isolates a cause; with such pairs a table speaks."""
    if ablated.measured_pairs(ev):
        return None
    return say(
        "<b>The cause.</b> Acceptance beside iteration time says where the gain goes, not why. "
        "Memory, admission, reserve and verification cost each need an ablation of their own "
        "before one of them is named."
    )


def as_list(items: list[Markup]) -> Markup:
    """An unordered list."""
    return (
        Markup('<ul class="caveats">')
        + Markup("").join(Markup("<li>") + escape(i) + Markup("</li>") for i in items)
        + Markup("</ul>")
    )

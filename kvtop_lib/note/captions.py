"""Captions of the figures: the claim first, then what the reader needs to judge it."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib.note import planned
from kvtop_lib.note.change import Change
from kvtop_lib.note.claims import (
    at,
    crossing,
    near_note,
    primary_changes,
    sentences,
    shape,
    standings,
)
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.tables import pick

Caption = tuple[Markup, Markup]
"""Claim and body."""

STEADY = 0.05
"""Relative change from the lowest to the highest load below which a quantity barely moves."""

_MOVES = {  # (acceptance moves, cost relative to the baseline moves)
    (False, True): "Drafts are accepted as often at {high} as at {low}; what they cost changes.",
    (False, False): "From {low} to {high} neither acceptance nor the relative cost of an iteration "
    "moves.",
    (True, True): "From {low} to {high} acceptance and the relative cost of an iteration both "
    "move.",
    (True, False): "From {low} to {high} acceptance moves; the relative cost of an iteration "
    "barely does.",
}
_PAYS = {  # (at the lowest load, at the highest)
    (True, False): "Drafts yield more than they cost at {low}, and less at {high}.",
    (True, True): "Drafts yield more than they cost, at {low} and at {high}.",
    (False, False): "Drafts cost more than they yield, at {low} and at {high}.",
    (False, True): "Drafts cost more than they yield at {low}, and less at {high}.",
}


def _ends(ev: Evidence, changes: list[Change]) -> dict[str, Markup]:
    """Lowest and highest load with a valid pair, in words."""
    return {"low": planned.lowest(ev, changes), "high": planned.highest(ev, changes)}


def core(ev: Evidence, isolated: bool = False) -> Caption:
    """Drafting off and on at the lowest and the highest load.

    ``isolated``: the two arms are one deployment and differ in the draft width alone.
    """
    changes = primary_changes(ev)
    ends = list(dict.fromkeys((changes[0], changes[-1])))
    said = listing([at(x, ev) for x in ends])
    claim = say("Turning drafting on ({arm}): {said}.", arm=ev.title(ev.primary), said=said)
    if isolated:
        claim = say("Drafting on, in one and the same deployment: {said}.", said=said)
    body = say("Bars are scaled to the longer of their own load. ")
    if isolated:
        body += say("Both bars of a load are one configuration but for the draft width. ")
        for x in ends:
            if x.verdict == "loss":
                body += say(
                    "At {c} switching drafting off gives {p}. ",
                    c=ev.load_value(x.c),
                    p=ev.inverse(x),
                )
    if not any(_chooses(p) for p in ev.every_arm.values()):
        body += say(
            "Drafting was on or off for a whole server; no policy that switches between them was "
            "tested."
        )
    return claim, body


def _chooses(arm: dict) -> bool:
    """Whether an arm's policy picks the width before every iteration."""
    policy = pick(arm, "draft.policy")
    return bool(policy) and not str(policy).startswith("fixed:")


def throughput(ev: Evidence) -> Caption:
    """Claim and body of the throughput figure's caption."""
    changes = primary_changes(ev)
    if not changes:
        return say("There is no pair of curves to compare."), sentences(*ev.remarks("throughput"))
    claim = {
        "gain_then_loss": "The curves cross: the gain at {low} does not reach {high}.",
        "gain": "{arm} stays above the baseline at every {every}.",
        "loss": "{arm} stays below the baseline at every {every}.",
        "same": "The curves lie on each other.",
        "gain_fades": "The curves meet: the gain at {low} is spent before {high}.",
    }.get(shape(changes), "The curves of drafting and baseline change places with load.")
    ends = dict.fromkeys((changes[0].c, changes[-1].c))
    words = {**_ends(ev, changes), "every": planned.every(ev, changes)}
    words["arm"] = ev.title(ev.primary)
    return say(claim, **words), sentences(
        *(standings(ev, c) for c in ends), *ev.remarks("throughput")
    )


def ttft(ev: Evidence) -> Caption:
    """Claim and body of the TTFT figure's caption."""
    changes = ev.changes(ev.primary, "ttft_s_p50") if ev.primary else []
    if not changes:
        return say("Time to first token was not measured for a pair of arms."), Markup("")
    last = changes[-1]
    words = {
        "gain": "longer with drafting",
        "loss": "less long with drafting",
        "same": "about as long with drafting as without",
    }
    claim = say(
        "At {c} the first token takes {words} ({p}).",
        c=ev.load_value(last.c),
        words=words[last.verdict],
        p=last.percent,
    )
    base = ev.mean(ev.reference, last.c, "ttft_s_p50", "s")
    arm = ev.mean(ev.primary, last.c, "ttft_s_p50", "s")
    if not (base and arm):
        return claim, Markup(" ").join(ev.remarks("ttft"))
    body = say(
        "Median over the requests of the window: {b} for the baseline, {a} for {arm}.",
        b=base,
        a=arm,
        arm=ev.title(ev.primary),
    )
    if len(changes) > 1:
        body += say(
            " At {c} the difference is {p}.", c=ev.load_value(changes[0].c), p=changes[0].percent
        )
    return claim, body


def ratio(ev: Evidence) -> Caption:
    """Claim and body of the ratio figure's caption."""
    changes = primary_changes(ev)
    if not changes:
        return say("No ratio can be formed."), Markup("")
    best = max((x for a in ev.drafting for x in ev.changes(a)), key=lambda x: x.ratio)
    worst = min((x for a in ev.drafting for x in ev.changes(a)), key=lambda x: x.ratio)
    claim = say(
        "The ratios run from {hi} ({ha}, {hc}) to {lo} ({la}, {lc}).",
        hi=best.percent,
        ha=ev.title(best.arm),
        hc=ev.load_value(best.c),
        lo=worst.percent,
        la=ev.title(worst.arm),
        lc=ev.load_value(worst.c),
    )
    parts = [crossing(changes, ev), near_note(ev), *ev.remarks("ratio")]
    if ev.noise.loads:
        parts.append(say("The band is the largest difference between the two baselines."))
    return claim, Markup(" ").join(parts)


def mechanism(ev: Evidence) -> Caption:
    """Claim and body of acceptance beside iteration time."""
    rows = _yield_cost(ev)
    if not rows:
        return say("Acceptance or iteration time was not recorded for a pair of arms."), Markup("")
    low, high = rows[0], rows[-1]
    arm = ev.title(ev.primary)
    moves = [abs(high[k].value / low[k].value - 1) > STEADY for k in ("accept", "cost")]
    claim = say(_MOVES[tuple(moves)], **_ends(ev, [x["cost_change"] for x in rows]))
    body = say(
        "{arm} advances {al} tokens per iteration at {cl} and {ah} at {ch}; its iteration takes "
        "{il} and {ih}.",
        arm=arm,
        al=low["accept"],
        ah=high["accept"],
        cl=ev.load_value(low["c"]),
        ch=ev.load_value(high["c"]),
        il=low["iteration"],
        ih=high["iteration"],
    )
    return claim, body


def plane(ev: Evidence) -> Caption:
    """Claim and body of yield against cost."""
    rows = _yield_cost(ev)
    if not rows:
        return say("Yield and cost cannot be set side by side."), Markup("")
    low, high = rows[0], rows[-1]
    pays_low, pays_high = (r["step"].value > r["cost"].value for r in (low, high))
    claim = say(_PAYS[pays_low, pays_high], **_ends(ev, [x["cost_change"] for x in rows]))
    body = say(
        "For {arm} an iteration costs {l} times the baseline's at {cl} and {h} times at {ch}. "
        "Above the diagonal a decoding request moves faster than in the baseline, below it slower.",
        arm=ev.title(ev.primary),
        l=low["cost"],
        h=high["cost"],
        cl=ev.load_value(low["c"]),
        ch=ev.load_value(high["c"]),
    )
    return claim, body


def _yield_cost(ev: Evidence) -> list[dict]:
    rows = []
    for c in ev.loads if ev.primary else []:
        accept = ev.mean(ev.primary, c, "accept_len", "")
        step = ev.mean(ev.primary, c, "tokens_per_step", "")
        iteration = ev.mean(ev.primary, c, "iteration_s_p50", "ms", 1e3)
        cost = ev.change(ev.primary, c, "iteration_s_p50")
        if accept and step and iteration and cost:
            times = Value(f"{cost.ratio:.2f}", cost.percent.source, cost.ratio)
            found = {"accept": accept, "step": step, "iteration": iteration, "cost": times}
            rows.append({"c": c, "cost_change": cost, **found})
    return rows

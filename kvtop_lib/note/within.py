"""Goodput: requests, and their tokens, that meet every latency target."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib import figures
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.change import verdict
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.stats import LANES

REQUESTS, TOKENS, SHARE = "goodput_requests_s", "goodput_tok_s", "goodput_attainment"
_LIMIT = {
    "ttft_s": "time to first token",
    "tpot_s": "time per further token",
    "e2e_s": "time to the whole answer",
}
_WORD = {"gain": "more", "loss": "fewer", "same": "about as many"}


def goodput(ev: Evidence) -> Plate | None:
    """Requests and tokens within the latency targets over lanes."""
    return _plate(ev, "goodput") if ev.axis == LANES else None


def rate_goodput(ev: Evidence) -> Plate | None:
    """The same over arrival rates."""
    return _plate(ev.rates, "rate_goodput") if ev.rates else None


def _plate(ev: Evidence, name: str) -> Plate | None:
    """Requests and tokens within the latency targets over load."""
    requests, tokens, share = (ev.by_load(k) for k in (REQUESTS, TOKENS, SHARE))
    if ev.targets is None or not requests["n"].any():
        return None
    data = requests[["arm", "title", "axis", "c"]].assign(
        requests_s=requests["mean"], tok_s=tokens["mean"], attainment=share["mean"],
        lines=requests["lines"],
    )  # fmt: skip
    charts = (
        figures.over_load(requests, y_title="requests within targets (1/s)"),
        figures.over_load(tokens, y_title="tokens of these requests (tok/s)"),
    )
    metric = say("requests, and their tokens, that end ok and meet every target, over the window")
    labels = ("Requests", "Their tokens")
    return Plate(name, charts, data, caption(ev), metric, labels=labels, rests_on=ev)


def limits(ev: Evidence) -> Markup:
    """The latency targets, in words."""
    return listing(
        [
            say("{what} at most {v}", what=_LIMIT.get(k, k.removesuffix("_s")), v=v)
            for k, v in (ev.targets or {}).items()
        ]
    )


def caption(ev: Evidence) -> Caption:
    """Claim: more or fewer than the baseline at both ends. Body: the numbers and the targets."""
    measured = [x for c in ev.loads if ev.primary and (x := _pair(ev, c))]
    ends = [measured[0], measured[-1]] if len(measured) > 1 else measured
    rule = say(" Targets: {limits}.", limits=limits(ev))
    if not ends:
        return say("Goodput was not measured for a pair of arms."), rule
    said = [say("{w} at {c}", w=_WORD[_side(b, a)], c=ev.load_value(c)) for c, b, a in ends]
    claim = say(
        "Requests within the targets, with {arm} against the baseline: {said}.",
        arm=ev.title(ev.primary),
        said=listing(said),
    )
    said = [_numbers(ev, *end) for end in ends] + _each(ev, ends[-1][0])
    return claim, Markup(" ").join(said) + rule


def _each(ev: Evidence, c: float) -> list[Markup]:
    """Attainment of every target by itself at one load, where there are several."""
    parts = []
    for key in ev.targets or {}:
        base, arm = (
            ev.mean(a, c, f"{SHARE}_by_target_{key}", "") for a in (ev.reference, ev.primary)
        )
        if base and arm:
            what = _LIMIT.get(key, key.removesuffix("_s"))
            parts.append(say("{w} {b} and {a}", w=what, b=base, a=arm))
    if len(parts) < 2:
        return []
    return [say("At {c} a share meets each target by itself: {p}.", c=ev.load_value(c),
                p=listing(parts))]  # fmt: skip


def _pair(ev: Evidence, c: float) -> tuple[float, Value, Value] | None:
    base, arm = (ev.mean(a, c, REQUESTS, "requests/s") for a in (ev.reference, ev.primary))
    return (c, base, arm) if base and arm else None


def _side(base: Value, arm: Value) -> str:
    """Verdict where one of the two may be 0, which has no ratio."""
    if base.value and arm.value:
        return verdict(arm.value / base.value)
    return "same" if arm.value == base.value else ("gain" if arm.value > base.value else "loss")


def _numbers(ev: Evidence, c: float, base: Value, arm: Value) -> Markup:
    tokens = [ev.mean(a, c, TOKENS, "tok/s") for a in (ev.reference, ev.primary)]
    share = [ev.mean(a, c, SHARE, "") for a in (ev.reference, ev.primary)]
    text = say("At {c}: {b} become {a}", c=ev.load_value(c), b=base, a=arm)
    if all(tokens):
        text += say(", {b} become {a}", b=tokens[0], a=tokens[1])
    if all(share):
        text += say("; of the requests sent, a share of {b} and {a}", b=share[0], a=share[1])
    return text + say(".")

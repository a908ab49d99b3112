"""What the note claims: sentences that follow from the data, whichever way they point."""

from __future__ import annotations

from markupsafe import Markup

from kvtop_lib import stats
from kvtop_lib.note import planned
from kvtop_lib.note.change import NEAR, Change
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.prose import NBSP, Value, listing, say

_NEAR = Value(f"{NEAR:.0%}".replace("%", f"{NBSP}%"), "kvtop_lib.note.change:NEAR", NEAR)
_WORD = {"gain": "raises", "loss": "lowers", "same": "does not clearly change"}


def shape(changes: list[Change]) -> str:
    """Course of a change over rising load.

    Returns
    -------
    str
        ``none`` (not measured), ``gain`` / ``loss`` / ``same`` (at every load), ``gain_then_loss``,
        ``loss_then_gain``, ``gain_fades``, ``loss_fades``, ``gain_grows``, ``loss_grows`` or
        ``mixed``.
    """
    course: list[str] = []
    for change in changes:
        if not course or course[-1] != change.verdict:
            course.append(change.verdict)
    names = {
        (): "none",
        ("gain",): "gain",
        ("loss",): "loss",
        ("same",): "same",
        ("gain", "loss"): "gain_then_loss",
        ("gain", "same", "loss"): "gain_then_loss",
        ("loss", "gain"): "loss_then_gain",
        ("loss", "same", "gain"): "loss_then_gain",
        ("gain", "same"): "gain_fades",
        ("loss", "same"): "loss_fades",
        ("same", "gain"): "gain_grows",
        ("same", "loss"): "loss_grows",
    }
    return names.get(tuple(course), "mixed")


_HEADLINE = {  # who: `who`; few, many, every: `kvtop_lib.note.planned`
    "none": "Drafting against no drafting: nothing to compare yet",
    "gain": "{who} paid at every {every}",
    "loss": "{who} paid at no {every}",
    "same": "{who} made no clear difference at any {every}",
    "gain_then_loss": "{who} pays {few}, and costs output {many}",
    "loss_then_gain": "{who} costs output {few}, and pays {many}",
    "gain_fades": "{who} pays {few}; {many} the gain is gone",
    "loss_fades": "{who} costs output {few}; {many} it makes no clear difference",
    "gain_grows": "{who} makes no clear difference {few}, and pays {many}",
    "loss_grows": "{who} makes no clear difference {few}, and costs output {many}",
    "mixed": "{who} helps at some loads and hurts at others, in no simple order",
}


def headline(ev: Evidence) -> Markup:
    """The title: the course of the primary arm's throughput, in words."""
    changes = primary_changes(ev)
    if not changes:
        return say(_HEADLINE["none"])
    words = {k: getattr(planned, k)(ev, changes) for k in ("few", "many", "every")}
    return say(_HEADLINE[shape(changes)], who=who(ev), **words)


def who(ev: Evidence) -> Markup:
    """``Drafting``, or the headline's arm by name where another drafting arm fares otherwise."""
    courses = {shape(changes) for arm in ev.drafting if (changes := ev.changes(arm))}
    return say("{who}", who=ev.title(ev.primary) if len(courses) > 1 else "Drafting")


def better(ev: Evidence) -> Markup | None:
    """Sentence on the largest gain of another arm at a load where the headline's has less."""
    own = {x.c: x.ratio for x in primary_changes(ev)}
    gains = [
        x for arm in ev.drafting if arm != ev.primary for x in ev.changes(arm)
        if x.verdict == "gain" and x.ratio > own.get(x.c, 1.0)
    ]  # fmt: skip
    if not gains:
        return None
    best = max(gains, key=lambda x: x.ratio)
    named = ev.title(best.arm)
    return say("Of the other arms {arm} gains most ({at}).", arm=named, at=at(best, ev))


def primary_changes(ev: Evidence) -> list[Change]:
    """Changes of throughput of the arm that the headline speaks of, over rising load."""
    return ev.changes(ev.primary) if ev.primary else []


def at(change: Change, ev: Evidence) -> Markup:
    """``+30 % at c = 1``."""
    return say("{p} at {c}", p=change.percent, c=ev.load_value(change.c))


def crossing(changes: list[Change], ev: Evidence) -> Markup:
    """Between which measured loads an arm's gain turns into a loss, in words."""
    what = shape(changes)
    if what == "gain_then_loss":
        last = max(x.c for x in changes if x.verdict == "gain")
        first = min(x.c for x in changes if x.verdict == "loss")
        return say(
            "The sign turns between {a} and {b}; the measured loads place it no closer.",
            a=ev.load_value(last),
            b=ev.load_value(first),
        )
    every = planned.every(ev, changes) if changes else Markup("")
    if what in ("gain", "gain_fades"):
        return say(
            "No {every} up to {c} turns the gain into a loss.",
            every=every,
            c=ev.load_value(changes[-1].c),
        )
    if what in ("loss", "loss_grows", "loss_fades", "same"):
        return say(
            "With {arm} no {every} shows a gain, so there is no crossover to report.",
            arm=ev.title(ev.primary),
            every=every,
        )
    return say("The course is not a single turn from gain to loss, so no crossover is named.")


def standfirst(ev: Evidence) -> Markup:
    """Two or three sentences under the title."""
    changes, unfinished = primary_changes(ev), planned.unfinished(ev)
    if not changes:
        text = say("No load has a valid point of both the baseline and a drafting arm.")
        return sentences(text, unfinished)
    low, high = changes[0], changes[-1]
    text = say(
        "{arm} {does} output throughput ({at}).",
        arm=ev.title(ev.primary),
        does=_WORD[low.verdict],
        at=at(low, ev),
    )
    if high is not low:
        text += say(" At {c} the change is {p}.", c=ev.load_value(high.c), p=high.percent)
    return sentences(
        text, crossing(changes, ev), better(ev), planned.gaps(ev), _once(ev), unfinished
    )


def _once(ev: Evidence) -> Markup | None:
    """Sentence on what a run without repeats leaves open; None where there are intervals."""
    if ev.quoted or ev.ratios["low"].notna().any():
        return None
    then = "so the decision below calls no load better or worse"
    if ev.noise.loads:
        then = "so the decision below asks for more than the A/A pair showed"
    return say(
        "Every comparison rests on one pair of windows: how far another run would differ is not "
        "known, {then}.",
        then=then,
    )


def sentences(*texts: Markup | None) -> Markup:
    """Sentences after one another; those that are None are left out."""
    return Markup(" ").join(t for t in texts if t)


def standings(ev: Evidence, c: int) -> Markup | None:
    """Who gains, who loses at one load."""
    found = [x for a in ev.drafting if (x := ev.change(a, c))]
    groups = []
    for kind, verb in (
        ("gain", "ahead of the baseline"),
        ("loss", "behind the baseline"),
        ("same", "level with the baseline"),
    ):
        named = [
            say("{a} ({p})", a=ev.title(x.arm), p=x.percent) for x in found if x.verdict == kind
        ]
        if named:
            groups.append(
                say(
                    "{who} {be} {verb}",
                    who=listing(named),
                    be="is" if len(named) == 1 else "are",
                    verb=verb,
                )
            )
    return (
        say("At {c}: {groups}.", c=ev.load_value(c), groups=Markup("; ").join(groups))
        if groups
        else None
    )


def near_note(ev: Evidence) -> Markup:
    """How a difference is told from none."""
    if ev.quoted:
        return say(
            "A change whose printed digits allow one under {near} is called level; how far another "
            "run would differ is not known.",
            near=_NEAR,
        )
    floor = Value(str(ev.noise), "kvtop_lib.stats:noise_floor")
    if ev.ratios["low"].notna().any():
        summary = stats.summarise(stats.block_ratios(ev.points, "output_tok_s"))
        sure = Value(stats.how_sure(summary), "kvtop_lib.stats:how_sure")
        return say(
            "Bars are intervals ({sure}); a change whose interval holds “equal” is called level; "
            "{floor}.",
            sure=sure,
            floor=floor,
        )
    return say("Changes under {near} are called level; {floor}.", near=_NEAR, floor=floor)

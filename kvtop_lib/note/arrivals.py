"""Arrivals that do not wait for the server: what drafting does over rising arrival rates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from markupsafe import Markup

from kvtop_lib import figures
from kvtop_lib.note import planned
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.change import Change
from kvtop_lib.note.claims import at, sentences, shape
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say

WAIT = "ttft_intended_s_p50"
_TAIL = "ttft_intended_s_p99"
KEPT = 0.05
"""Share of the requests asked for by which those that ended may fall short in a window before the
server is said not to keep up."""

_HEADLINE = {
    "none": "Drafting against no drafting under arrivals: nothing to compare yet",
    "gain": "Drafting lengthened the wait for the first token at every {every}",
    "loss": "Drafting shortened the wait for the first token at every {every}",
    "same": "Drafting left the wait for the first token as it was at every {every}",
}
_TURNS = "What drafting does to the wait for the first token depends on the arrival rate"
_WORD = {"gain": "is longer", "loss": "is shorter", "same": "is about as long"}


def waits(ev: Evidence) -> list[Change]:
    """Changes of the median wait, of the arm that the headline speaks of, over rising rate."""
    return ev.changes(ev.primary, WAIT) if ev.primary else []


def headline(ev: Evidence) -> Markup:
    """The title of a page that knows rates only."""
    found = waits(ev)
    if not found:
        return say(_HEADLINE["none"])
    return say(_HEADLINE.get(shape(found), _TURNS), every=planned.every(ev, found))


def standfirst(ev: Evidence) -> Markup:
    """Sentences under the title of such a page."""
    found, unfinished = waits(ev), planned.unfinished(ev)
    if not found:
        text = say("No arrival rate has a valid point of both the baseline and a drafting arm.")
        return sentences(text, unfinished)
    ends = listing([at(x, ev) for x in _ends(found)])
    text = say(
        "Sessions start at their own times, whether or not the server keeps up. With {arm} the "
        "median wait for the first token, from the time at which a request was due, changes by "
        "{ends}.",
        arm=ev.title(ev.primary), ends=ends,
    )  # fmt: skip
    return sentences(text, planned.gaps(ev), unfinished)


def _ends(changes: list[Change]) -> list[Change]:
    return list(dict.fromkeys([changes[0], changes[-1]]))


def drawable(frame: pd.DataFrame) -> pd.DataFrame:
    """A percentile without an end is a cross at the top, told by its reason, not a gap."""
    endless = np.isinf(pd.to_numeric(frame["mean"]))
    reason = "rests on requests without a first token"
    return frame.assign(
        mean=frame["mean"].mask(endless),
        values=[[v for v in values if np.isfinite(v)] for values in frame["values"]],
        status=frame["status"].mask(endless, "no end"),
        reason=frame["reason"].mask(endless, reason),
    )


def rate_ttft(ev: Evidence) -> Plate | None:
    """Time to first token, from the intended time, over arrival rate."""
    ev = ev.rates
    if ev is None:
        return None
    median, tail = ev.by_load(WAIT), ev.by_load(_TAIL)
    if not median["n"].any():
        return None
    data = median[["arm", "title", "axis", "c"]].assign(
        ttft_p50_s=median["mean"], ttft_p99_s=tail["mean"], lines=median["lines"]
    )
    charts = tuple(_chart(frame, f"TTFT {q} (s)") for frame, q in ((median, "p50"), (tail, "p99")))
    metric = say(
        "first token minus the time at which the request was due, over requests due in the window; "
        "one without a first token counts as an infinite wait"
    )
    labels = ("Median", "The longest of a hundred")
    return Plate("rate_ttft", charts, data, _waiting(ev, median), metric, labels=labels,
                 rests_on=ev)  # fmt: skip


def _chart(frame: pd.DataFrame, y_title: str):
    shown = drawable(frame)
    top = max([0.0, *pd.to_numeric(shown["mean"]).dropna()])
    return figures.over_load(shown, y_title=y_title, floor=top)


def _waiting(ev: Evidence, median: pd.DataFrame) -> Caption:
    found = waits(ev)
    endless = median[np.isinf(pd.to_numeric(median["mean"]))]
    lost = Markup("")
    if len(endless):
        where = listing(
            [
                say("{a} at {c}", a=ev.title(r.arm), c=ev.load_value(r.c))
                for r in endless.itertuples()
            ]
        )
        lost = say(" No median exists for {where}: the first token of half of the requests or more "
                   "had not come when watching ended.", where=where)  # fmt: skip
    if not found:
        return say("No pair of arms has a median wait at one rate."), lost
    parts = [
        say("{w} at {c} ({p})", w=_WORD[x.verdict], c=ev.load_value(x.c), p=x.percent)
        for x in _ends(found)
    ]
    claim = say("With {arm} the wait for the first token {p}.", arm=ev.title(ev.primary),
                p=listing(parts))  # fmt: skip
    said = []
    for x in _ends(found):
        base, arm = (ev.mean(a, x.c, WAIT, "s") for a in (ev.reference, ev.primary))
        said.append(say("At {c}: {b} for the baseline, {a} for {arm}.", c=ev.load_value(x.c),
                        b=base, a=arm, arm=ev.title(ev.primary)))  # fmt: skip
    return claim, Markup(" ").join(said) + lost


def rate_flow(ev: Evidence) -> Plate | None:
    """Requests that ended per second over arrival rate: whether the server kept up."""
    ev = ev.rates
    if ev is None:
        return None
    asked, done = ev.by_load("asked_rate"), ev.by_load("ended_rate")
    if not done["n"].any():
        return None
    data = done[["arm", "title", "axis", "c"]].assign(
        asked_s=asked["mean"], ended_s=done["mean"], lines=done["lines"]
    )
    chart = figures.over_load(done, y_title="requests that ended ok (1/s)")
    metric = say("requests that ended ok inside the window, per second of it")
    return Plate("rate_flow", (chart,), data, _kept(ev), metric, rests_on=ev)


def _kept(ev: Evidence) -> Caption:
    """Claim: which arms fall behind, and from which rate on."""
    behind, lines = [], []
    for arm in ev.arms:
        pairs = [(c, ev.mean(arm, c, "asked_rate", "requests/s"),
                  ev.mean(arm, c, "ended_rate", "requests/s")) for c in ev.loads]  # fmt: skip
        known = [p for p in pairs if p[1] and p[2]]
        late = [p for p in known if p[2].value < (1 - KEPT) * p[1].value]
        if late:
            behind.append(say("{a} from {c} on", a=ev.title(arm), c=ev.load_value(late[0][0])))
        if known:
            c, want, got = known[-1]
            lines.append(say("At {c} {a} ended {g} of {w} asked for.", c=ev.load_value(c),
                             a=ev.title(arm), g=got, w=want))  # fmt: skip
    limit = Value(f"{100 * KEPT:g} percent", "kvtop_lib.note.arrivals:KEPT", KEPT)
    if behind:
        claim = say("More than {l} of the requests asked for did not end in the window: {b}.",
                    l=limit, b=listing(behind))  # fmt: skip
    else:
        claim = say("Every arm kept up with every rate, within {l} of the requests.", l=limit)
    return claim, Markup(" ").join(lines)

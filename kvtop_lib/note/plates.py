"""The figures of the note: which chart, of which data, under which claim."""

from __future__ import annotations

from functools import wraps

import pandas as pd

from kvtop_lib import figures, tables
from kvtop_lib.note import ablated, arrivals, captions, decided, ended, parted, predicted, within
from kvtop_lib.note.claims import primary_changes
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.plate import Maker, Plate
from kvtop_lib.note.prose import say
from kvtop_lib.stats import LANES

_TOK_S = say("output tokens per second seen by the client over the window")


def core(ev: Evidence) -> Plate | None:
    """The core result: drafting off and on at the lowest and the highest load.

    Of the isolation pair, where it was measured: one deployment, another draft width.
    """
    isolated = ev.isolation is not None
    ev = ev.isolation or ev
    changes = primary_changes(ev)
    if not changes:
        return None
    tok_s = ev.by_load("output_tok_s").set_index(["arm", "c"])
    rows = [
        {"c": c, "drafting": state, "tok_s": tok_s.loc[(arm, c), "mean"],
         "lines": tok_s.loc[(arm, c), "lines"]}
        for c in dict.fromkeys((changes[0].c, changes[-1].c))
        for arm, state in ((ev.reference, "off"), (ev.primary, "on"))
    ]  # fmt: skip
    data = pd.DataFrame(rows)
    chart = figures.pair(data.drop(columns="lines"))
    caption = captions.core(ev, isolated)
    return Plate("core", (chart,), data, caption, _TOK_S, numbered=False, rests_on=ev)


def throughput(ev: Evidence) -> Plate:
    """Aggregate output throughput over load."""
    data = ev.by_load("output_tok_s")
    return Plate("throughput", (figures.throughput(data),), data, captions.throughput(ev), _TOK_S)


def ttft(ev: Evidence) -> Plate | None:
    """Median time to first token over load."""
    data = ev.by_load("ttft_s_p50")
    if not data["n"].any():
        return None
    metric = say("time to first token, median over requests sent in the window")
    return Plate("ttft", (figures.ttft(data),), data, captions.ttft(ev), metric)


def ratio(ev: Evidence) -> Plate | None:
    """Throughput against the baseline."""
    if ev.ratios.empty:
        return None
    metric = say("output throughput over the baseline's in the same block, log axis")
    band = ev.noise.ratio if ev.noise.loads else None
    chart = figures.ratio_to_baseline(ev.ratios, ev.titles, band=band)
    return Plate("ratio", (chart,), ev.ratios, captions.ratio(ev), metric)


def mechanism(ev: Evidence) -> Plate | None:
    """Acceptance beside iteration time."""
    accept, step = ev.by_load("accept_len"), ev.by_load("iteration_s_p50")
    if not accept["n"].any():
        return None
    data = accept[["arm", "title", "c"]].assign(
        accept_len=accept["mean"], iteration_s_p50=step["mean"], lines=step["lines"]
    )
    charts = (figures.acceptance(accept), figures.iteration_time(step))
    metric = say("acceptance length, pooled; iteration time from counters of requests, median")
    labels = ("Yield: acceptance length", "Cost: iteration time")
    return Plate("mechanism", charts, data, captions.mechanism(ev), metric, labels=labels)


def plane(ev: Evidence) -> Plate | None:
    """Yield of drafting against its cost, both over the baseline's."""
    data = tables.yield_and_cost(ev.points)
    if data.empty:
        return None
    chart = figures.yield_and_cost(data.drop(columns="lines"), ev.titles)
    metric = say("tokens delivered per iteration against iteration time, both relative")
    return Plate("plane", (chart,), data, captions.plane(ev), metric)


def _over_lanes(make: Maker) -> Maker:
    """A maker that makes nothing where the page's loads are arrival rates."""

    @wraps(make)
    def maker(ev: Evidence) -> Plate | None:
        return make(ev) if ev.axis == LANES else None

    return maker


BY_LANES = (
    core, throughput, ttft, ratio, within.goodput, mechanism, plane, parted.decomposition,
    predicted.prediction, ablated.ablation, decided.decision,
)  # fmt: skip
"""Makers whose figures are over lanes."""

BY_RATES = (arrivals.rate_ttft, within.rate_goodput, arrivals.rate_flow)

ALL: dict[str, Maker] = {f.__name__: _over_lanes(f) for f in BY_LANES} | {
    f.__name__: f for f in (ended.ended, *BY_RATES)
}
"""Every figure and table of the note by name."""

SHOWS = {
    "core": "the core result",
    "throughput": "output throughput over load",
    "ttft": "the time to the first token over load",
    "ratio": "ratios to the baseline",
    "mechanism": "acceptance beside iteration time",
    "plane": "tokens per iteration against its time",
}
"""What a figure of every page shows, for a run that cannot show it."""

"""Charts of what drafting yields and what it costs."""

from __future__ import annotations

import math
from itertools import pairwise

import altair as alt
import pandas as pd

from kvtop_lib.figures import labels
from kvtop_lib.figures.style import INK, LOADS, arm_channels, axis_of, finish, top_legend


def yield_and_cost(frame: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Tokens per iteration against iteration time, both relative to the baseline at the same load.

    Points above the diagonal decode faster than the baseline, points below slower.

    Parameters
    ----------
    frame : DataFrame
        One row per drafting arm and load: ``title``, ``c``, ``yield_ratio`` (tokens per iteration
        over the baseline's) and ``cost_ratio`` (iteration time over the baseline's).
    titles : list of str
        Titles of all arms of the run, the baseline first.
    """
    channels = arm_channels(titles, drop=1)
    data = frame.dropna(subset=["yield_ratio", "cost_ratio"])
    top = max([1.5, *data["yield_ratio"], *data["cost_ratio"]]) * 1.06
    low = min([1.0, *data["cost_ratio"], *data["yield_ratio"]]) * 0.97
    scale = alt.Scale(type="log", domain=[low, top], nice=False)
    ticks = [t for t in (0.5, 0.7, 1, 1.2, 1.5, 2, 2.5, 3, 4, 6, 8) if low <= t <= top]
    axis = {"values": ticks, "format": "~g", "domain": False, "ticks": False}
    line = pd.DataFrame({"cost_ratio": [low, top], "yield_ratio": [low, top]})
    even = (
        alt.Chart(line)
        .mark_line(color=INK, strokeWidth=1.3, opacity=0.7)
        .encode(x=alt.X("cost_ratio:Q"), y=alt.Y("yield_ratio:Q"))
    )
    base = alt.Chart(data).encode(
        x=alt.X(
            "cost_ratio:Q",
            scale=scale,
            axis=alt.Axis(**axis),
            title="iteration time, times the baseline's (cost)",
        ),
        y=alt.Y(
            "yield_ratio:Q",
            scale=scale,
            axis=alt.Axis(**axis),
            title="tokens per iteration, times the baseline's (yield)",
        ),
        tooltip=[
            alt.Tooltip("title:N", title="arm"),
            alt.Tooltip("c:Q"),
            alt.Tooltip("yield_ratio:Q", title="yield", format=".3f"),
            alt.Tooltip("cost_ratio:Q", title="cost", format=".3f"),
        ],
    )
    path = base.mark_line(strokeWidth=1.4, opacity=0.8).encode(
        color=channels["color"], strokeDash=channels["strokeDash"], order="c:Q"
    )
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(
        color=channels["color"], shape=channels["shape"]
    )
    texts = _load_labels(data, (low, top), base)
    return finish(alt.layer(even, path, dots, *texts), PLANE_PX, "yield against cost of drafting")


PLANE_PX = 330


def _load_labels(data: pd.DataFrame, domain: tuple[float, float], base: alt.Chart) -> list:
    """A layer per side of the points; both ends of an arm's path choose their places first.

    What finds no place off points and lines goes without; its tooltip has the load.
    """
    span = math.log(domain[1] / domain[0])
    place = [
        tuple(math.log(v / domain[0]) / span for v in pair)
        for pair in zip(data["cost_ratio"], data["yield_ratio"], strict=True)
    ]
    ends = data.groupby("title", sort=False)["c"].agg(["min", "max"]).loc[data["title"]]
    outer = ((data["c"] == ends["min"].values) | (data["c"] == ends["max"].values)).tolist()
    named = "{:g} starts/s" if axis_of(data) == "rates" else "c = {:g}"
    texts = [named.format(c) if end else f"{c:g}" for c, end in zip(data["c"], outer, strict=True)]
    order = sorted(range(len(texts)), key=lambda i: not outer[i])
    rank = data.assign(rank=range(len(data))).sort_values("c").groupby("title", sort=False)["rank"]
    lines = [(place[i], place[j]) for _, path in rank for i, j in pairwise(path)]
    lines.append(((0.0, 0.0), (1.0, 1.0)))  # as many tokens as they cost
    needed = [i for i in order if outer[i]]
    sides = labels.place(place, texts, order, PLANE_PX, lines=lines, needed=needed)
    shown = data.assign(label=texts, side=sides)
    found = []
    for side, (runs, dx, dy) in labels.SIDES.items():
        here = shown[shown["side"] == side]
        if len(here):
            mark = base.properties(data=here).mark_text(
                align={1: "left", -1: "right"}.get(runs, "center"), baseline="middle",
                dx=dx, dy=dy, fontSize=labels.FONT_PX,
            )  # fmt: skip
            found.append(mark.encode(text="label:N"))
    return found


def by_position(frame: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Chance that a draft is accepted, by its position: a dot per load, the line pools them.

    Parameters
    ----------
    frame : DataFrame
        `kvtop_lib.acceptance.by_draft_position` with a ``title``: ``c``, ``position`` (from 1),
        ``accepted`` (given that the draft before was), ``steps`` (that got so far).
    titles : list of str
        Titles of all arms of the run, the baseline first.
    """
    channels = arm_channels(titles, drop=1)
    pooled = frame.assign(kept=frame["accepted"] * frame["steps"])
    pooled = pooled.groupby(["title", "position"], as_index=False, sort=False)[["kept", "steps"]]
    pooled = pooled.sum().eval("accepted = kept / steps")
    x = alt.X("position:O", title="position of the draft in its chain", axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "accepted:Q",
        title="accepted, given that the one before was",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%", tickCount=5),
    )
    tooltip = [
        alt.Tooltip("title:N", title="arm"),
        alt.Tooltip("position:O"),
        alt.Tooltip("accepted:Q", format=".3f"),
        alt.Tooltip("steps:Q", title="verify steps", format=",d"),
    ]
    base = alt.Chart(pooled).encode(x=x, y=y, tooltip=tooltip)
    lines = base.mark_line(strokeWidth=2).encode(
        color=channels["color"], strokeDash=channels["strokeDash"]
    )
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(
        color=channels["color"], shape=channels["shape"]
    )
    loads = (
        alt.Chart(frame)
        .mark_tick(thickness=1.4, width=11, opacity=0.7)
        .encode(x=x, y=y, color=channels["color"], tooltip=[*tooltip, alt.Tooltip("c:Q")])
    )
    return finish(alt.layer(lines, loads, dots), 240, "acceptance by draft position")


def decomposition(frame: pd.DataFrame, title: str) -> alt.LayerChart:
    """Log contributions to one arm's throughput ratio, stacked per load; the dot is their sum.

    ``frame``: ``c``, ``factor``, ``log_ratio`` (natural log; positive helps); the last
    factor is what the others leave.
    """
    factors = list(dict.fromkeys(frame["factor"]))
    colours = ["#009E73", "#D55E00", "#56B4E9", "#E69F00"][: len(factors) - 1] + ["#999999"]
    bars = (
        alt.Chart(frame)
        .mark_bar(size=26)
        .encode(
            x=alt.X("c:O", title=LOADS[axis_of(frame)][1], axis=alt.Axis(labelAngle=0)),
            y=alt.Y("log_ratio:Q", title=f"log of the ratio, {title}", stack="zero"),
            color=alt.Color(
                "factor:N",
                scale=alt.Scale(domain=factors, range=colours),
                legend=top_legend(factors),
            ),
            tooltip=["c:O", "factor:N", alt.Tooltip("log_ratio:Q", format="+.3f")],
        )
    )
    total = frame.groupby("c", as_index=False)["log_ratio"].sum()
    dot = (
        alt.Chart(total)
        .mark_point(filled=True, size=90, color=INK, opacity=1)
        .encode(
            x="c:O", y="log_ratio:Q", tooltip=["c:O", alt.Tooltip("log_ratio:Q", format="+.3f")]
        )
    )
    rule = (
        alt.Chart(pd.DataFrame({"zero": [0.0]}))
        .mark_rule(color=INK, opacity=0.6)
        .encode(y="zero:Q")
    )
    return finish(alt.layer(bars, rule, dot), 270, f"what makes up the ratio of {title}")

"""Charts of the decision: verdicts by arm and load, and predictions beside measurements."""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.style import INK, arm_channels, finish, top_legend

ROW_PX = 52  # of one arm: its title above, its loads below

# Okabe and Ito, "Color Universal Design" (2008); the sign tells verdicts apart without colour
VERDICTS = {
    "better": ("#009E73", "▲"),
    "indistinguishable": ("#56B4E9", "="),
    "worse": ("#D55E00", "▼"),
    "unknown": ("#999999", "?"),
    "missed": ("#CC79A7", "×"),
}
"""Colour and sign of each verdict."""


def verdicts(frame: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Verdict on every arm at every load: a row of cells per arm, with the change in each.

    Parameters
    ----------
    frame : DataFrame
        ``title``, ``c``, ``verdict`` (`kvtop_lib.decision.judge`), ``ratio``, ``low``, ``high``.
    titles : list of str
        Titles of all arms of the run, in its order.
    """
    loads = [f"{c:g}" for c in sorted(frame["c"].unique())]
    order = [t for t in titles if t in set(frame["title"])]
    shown = frame.assign(
        load=[f"{c:g}" for c in frame["c"]],
        text=[
            f"{VERDICTS[v][1]} {_percent(r)}"
            for v, r in zip(frame["verdict"], frame["ratio"], strict=True)
        ],
    )
    seen = [v for v in VERDICTS if v in set(frame["verdict"])]
    base = alt.Chart(shown).encode(
        x=alt.X(
            "load:N", sort=loads, title="concurrency c (requests in flight)",
            axis=alt.Axis(labelAngle=0, domain=False, ticks=False),
        ),
        y=alt.Y("title:N", sort=order, axis=None, scale=alt.Scale(paddingInner=0.5,
                                                                 paddingOuter=0.25)),
        tooltip=[
            alt.Tooltip("title:N", title="arm"), alt.Tooltip("load:N", title="c"),
            alt.Tooltip("verdict:N"), alt.Tooltip("ratio:Q", format=".3f"),
            alt.Tooltip("low:Q", format=".3f"), alt.Tooltip("high:Q", format=".3f"),
        ],
    )  # fmt: skip
    cells = base.mark_rect(fillOpacity=0.3, strokeWidth=1.2).encode(
        color=alt.Color(
            "verdict:N",
            scale=alt.Scale(domain=seen, range=[VERDICTS[v][0] for v in seen]),
            legend=top_legend(seen),
        )
    )
    texts = base.mark_text(fontSize=11).encode(text="text:N")
    names = (
        alt.Chart(pd.DataFrame({"title": order}))
        .mark_text(align="left", baseline="bottom", dy=-ROW_PX / 4 - 3, fontSize=12)
        .encode(x=alt.value(0), y=alt.Y("title:N", sort=order, axis=None), text="title:N")
    )
    return finish(
        alt.layer(cells, texts, names), ROW_PX * len(order) + 8, "verdicts by arm and load"
    )


def _percent(ratio: float) -> str:
    change = round(100 * ratio - 100)
    return (f"{change:+d}".replace("-", "−") if change else "0") + " %"


def predicted(frame: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Predicted against measured iteration time, both in ms on a log axis; the rule is agreement.

    Parameters
    ----------
    frame : DataFrame
        ``title``, ``c``, ``iteration_s`` (measured), ``predicted_s``, ``error`` (relative).
    titles : list of str
        Titles of all arms of the run, in its order.
    """
    channels = arm_channels(titles)
    data = frame.assign(measured=1e3 * frame["iteration_s"], predicted=1e3 * frame["predicted_s"])
    values = [*data["measured"], *data["predicted"]]
    ends = [min(values) * 0.9, max(values) * 1.1]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    axis = alt.Axis(domain=False, ticks=False, tickCount=5, format="~g")
    rule = (
        alt.Chart(pd.DataFrame({"measured": ends, "predicted": ends}))
        .mark_line(color=INK, strokeWidth=1.3, opacity=0.7)
        .encode(x=alt.X("measured:Q"), y=alt.Y("predicted:Q"))
    )
    dots = (
        alt.Chart(data)
        .mark_point(size=70, filled=True, opacity=1)
        .encode(
            x=alt.X("measured:Q", scale=scale, axis=axis, title="measured iteration time (ms)"),
            y=alt.Y("predicted:Q", scale=scale, axis=axis, title="predicted iteration time (ms)"),
            color=channels["color"],
            shape=channels["shape"],
            tooltip=[
                alt.Tooltip("title:N", title="arm"),
                alt.Tooltip("c:Q"),
                alt.Tooltip("measured:Q", format=".2f"),
                alt.Tooltip("predicted:Q", format=".2f"),
                alt.Tooltip("error:Q", format="+.1%"),
            ],
        )
    )
    return finish(alt.layer(rule, dots), 300, "predicted against measured iteration time")

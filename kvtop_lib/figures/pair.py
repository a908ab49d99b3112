"""The core result: drafting off against drafting on, at a low and at a high load."""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.style import INK, finish


def pair(frame: pd.DataFrame) -> alt.LayerChart:
    """Horizontal bars of throughput, grouped by load, each group scaled to its longer bar.

    Parameters
    ----------
    frame : DataFrame
        One row per load and state: ``c``, ``drafting`` ("off" or "on"), ``tok_s``.

    Notes
    -----
    Throughput at a high load is many times that at a low one, so bars show the share of the
    longer bar of their own load and carry the value as text.
    """
    longest = frame.groupby("c")["tok_s"].transform("max")
    data = frame.assign(
        share=frame["tok_s"] / longest,
        load=[f"c = {c}" for c in frame["c"]],
        text=[f"{v:,.{int(v % 1 > 0)}f} tok/s" for v in frame["tok_s"]],
        row=[f"c = {c} · {d}" for c, d in zip(frame["c"], frame["drafting"], strict=True)],
    )
    rows = data["row"].tolist()
    y = alt.Y(
        "row:N",
        title=None,
        sort=rows,
        scale=alt.Scale(paddingInner=0.22),
        axis=alt.Axis(domain=False, ticks=False, labelPadding=8, labelFontSize=13),
    )
    x = alt.X(
        "share:Q",
        axis=None,
        scale=alt.Scale(
            domainMin=0, domainMax=alt.ExprRef("width < 300 ? 1.65 : 1.22"), nice=False
        ),
    )
    tooltip = [
        alt.Tooltip("load:N"),
        alt.Tooltip("drafting:N"),
        alt.Tooltip("text:N", title="tok/s"),
    ]
    base = alt.Chart(data).encode(x=x, y=y, tooltip=tooltip)
    bars = base.mark_bar(cornerRadiusEnd=2, strokeWidth=1.4).encode(
        color=alt.Color(
            "drafting:N", legend=None, scale=alt.Scale(domain=["off", "on"], range=[INK, "#0072B2"])
        ),
        fillOpacity=alt.FillOpacity(
            "drafting:O", legend=None, scale=alt.Scale(domain=["off", "on"], range=[0.28, 1.0])
        ),
    )
    labels = base.mark_text(align="left", dx=6, fontSize=13).encode(text="text:N")
    return finish(
        alt.layer(bars, labels), 34 * len(rows) + 6, "throughput with drafting off and on"
    )

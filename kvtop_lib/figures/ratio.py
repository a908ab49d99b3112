"""Ratios to a reference over load, on a log axis: as far up as down is as much gained as lost."""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.by_load import over_load
from kvtop_lib.figures.style import INK


def ratio_to_baseline(
    frame: pd.DataFrame,
    titles: list[str],
    y_title: str = "output throughput against the baseline",
    band: float | None = None,
) -> alt.LayerChart:
    """Throughput over the baseline's on a log axis, with a rule at 1 (equal).

    ``frame`` is that of `kvtop_lib.tables.ratios`; ``titles`` are those of all arms of the run,
    the baseline first; ``band`` is a ratio of at least 1 that the baseline differs from itself by.
    """
    seen = [v for values in frame["values"] for v in values] or [1.0]
    seen += [v for k in ("low", "high") for v in frame[k].dropna()]
    reach = max([1.1, band or 1.0, *seen, *(1 / v for v in seen)]) * 1.04
    ticks = [
        t
        for t in (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 4)
        if 1 / reach <= t <= reach
    ]
    rule = (
        alt.Chart(pd.DataFrame({"one": [1.0]}))
        .mark_rule(color=INK, strokeWidth=1.3, opacity=0.7)
        .encode(y=alt.Y("one:Q"))
    )
    if band:
        around = alt.Chart(pd.DataFrame({"low": [1 / band], "high": [band]}))
        noise = around.mark_rect(color=INK, opacity=0.1).encode(y=alt.Y("low:Q"), y2="high:Q")
        rule = alt.layer(noise, rule)
    axis = alt.Axis(
        values=ticks,
        domain=False,
        ticks=False,
        labelExpr="datum.value == 1 ? 'equal' : format(datum.value * 100 - 100, '+.0f') + ' %'",
    )
    return over_load(
        frame,
        y_title=y_title,
        fmt=".3f",
        drop=1,
        titles=titles,
        scale=alt.Scale(type="log", domain=[1 / reach, reach], nice=False),
        y_axis=axis,
        floor=1 / reach,
        under=rule,
        interval=True,
    )

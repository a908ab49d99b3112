"""Which draft widths ran at each load."""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.style import finish

# Okabe and Ito, "Color Universal Design" (2008); grey for not drafting.
COLOURS = ("#999999", "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00")


def widths_by_load(frame: pd.DataFrame) -> alt.Chart:
    """Share of each width in the iterations of a load, stacked to 1, a row of bars per arm.

    ``frame``: `kvtop_lib.policies.shares` with ``title``.
    """
    widths = sorted(set(frame["width"].astype(int)))
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(widths))]
    shown = frame.assign(width=frame["width"].astype(int))
    chart = (
        alt.Chart(shown)
        .mark_bar(size=26)
        .encode(
            x=alt.X("c:O", title="concurrency c", axis=alt.Axis(labelAngle=0)),
            y=alt.Y(
                "share:Q",
                title="of the iterations",
                stack="zero",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=3),
            ),
            color=alt.Color(
                "width:O",
                scale=alt.Scale(domain=widths, range=colours),
                legend=alt.Legend(title="tokens verified", orient="top"),
            ),
            order=alt.Order("width:O"),
            row=alt.Row("title:N", title=None, sort=None, header=alt.Header(labelAnchor="start")),
            tooltip=[
                alt.Tooltip("title:N", title="arm"),
                "c:O",
                "width:O",
                alt.Tooltip("share:Q", title="of the iterations", format=".1%"),
                alt.Tooltip("time_share:Q", title="of their time", format=".1%"),
                alt.Tooltip("iterations:Q", format=",d"),
            ],
        )
    )
    return finish(chart, 90, "draft widths by load")

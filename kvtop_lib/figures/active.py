"""Implied active requests over the number of clients: does a load reach the server at all?"""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.by_load import over_load
from kvtop_lib.figures.style import INK


def active_requests(frame: pd.DataFrame, titles: list[str], caps: list[int]) -> alt.LayerChart:
    """Active requests over clients, both on a log axis; the diagonal is one request per client.

    Parameters
    ----------
    frame : DataFrame
        ``title``, ``c``, ``mean`` (active requests), ``low`` and ``high`` (what printed digits
        allow), ``values``, ``n``, ``status``, ``reason``.
    titles : list of str
        Titles of all arms of the source, the reference first.
    caps : list of int
        Numbers that something is said to be limited to, drawn as a rule each.
    """
    loads = [int(c) for c in frame["c"]]
    low, high = min(0.8, frame["low"].min()), max([*loads, *caps, frame["high"].max()]) * 1.15
    ends = pd.DataFrame({"c": [min(loads), max(loads)]}).assign(mean=lambda f: f["c"])
    x, y = alt.X("c:Q"), alt.Y("mean:Q")
    diagonal = alt.Chart(ends).mark_line(color=INK, strokeWidth=1.2, opacity=0.65)
    layers = [
        diagonal.encode(x=x, y=y),
        _note(ends.iloc[1:].assign(text="one per client"), "right", -22, -3),
    ]
    if caps:
        texts = [f"cap of {n}" for n in caps]
        lines = pd.DataFrame({"mean": caps, "c": min(loads), "text": texts})
        rule = alt.Chart(lines).mark_rule(color=INK, strokeWidth=1.2, strokeDash=[3, 3])
        layers += [rule.encode(y=y), _note(lines, "left", 0, -8)]
    return over_load(
        frame,
        y_title="active requests (output / speed of one)",
        fmt=".1f",
        scale=alt.Scale(type="log", base=2, domain=[low, high], nice=False),
        y_axis=alt.Axis(
            values=[2**k for k in range(12) if low <= 2**k <= high], format="d",
            domain=False, ticks=False,
        ),
        titles=titles,
        under=alt.layer(*layers),
        interval=True,
        name="implied active requests over clients",
    )  # fmt: skip


def _note(rows: pd.DataFrame, align: str, dx: float, dy: float) -> alt.Chart:
    text = alt.Chart(rows).mark_text(align=align, baseline="middle", dx=dx, dy=dy, fontSize=11)
    return text.encode(x=alt.X("c:Q"), y=alt.Y("mean:Q"), text="text:N")

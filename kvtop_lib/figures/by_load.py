"""Charts over rising load: one line per arm, a dot per block, a cross where nothing was measured.

They take the frame of `kvtop_lib.tables.by_load`: one row per arm and load with the columns
``title``, ``c``, ``mean``, ``values`` (list, one per block), ``n``, ``status``, ``reason``, and
``axis`` (lanes without it).
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from kvtop_lib.figures.style import LOADS, arm_channels, arm_titles, axis_of, finish, load_axis

HEIGHT = 270  # pixels


def _tooltip(y_title: str, fmt: str, load: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("title:N", title="arm"),
        alt.Tooltip("c:Q", title=load),
        alt.Tooltip("mean:Q", title=y_title, format=fmt),
        alt.Tooltip("n:Q", title="blocks"),
    ]


def _derived(rows: pd.DataFrame, base: alt.Chart, looks: dict) -> alt.Chart:
    """Open markers on the page's ground."""
    tooltip = [*base.encoding.tooltip, alt.Tooltip("basis:N", title="from")]
    open_ = base.properties(data=rows.assign(basis="the printed ratio"))
    return open_.mark_point(size=62, filled=False, opacity=1, strokeWidth=2).encode(
        **looks, tooltip=tooltip
    )


def _blocks(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per block, only where a point was repeated."""
    many = frame[frame["n"] > 1][["title", "c", "values"]]
    return many.explode("values").rename(columns={"values": "value"})


def _stretches(frame: pd.DataFrame) -> pd.Series:
    """Label of the unbroken row of loads that a point belongs to.

    A line joins neighbours alone: over a load at which an arm was not to be measured it would
    show a course that nobody has seen.
    """
    place = frame["c"].rank(method="dense")
    return place - frame.groupby("title")["c"].rank(method="dense")


def _missing(frame: pd.DataFrame, floor: float) -> pd.DataFrame:
    bad = frame["mean"].isna() & (frame["status"] != "ok")
    gone = frame[bad][["title", "c", "status", "reason"]]
    return gone.assign(floor=floor)


def _ticks(blocks: pd.DataFrame, x: alt.X, color: alt.Color, fmt: str, load: str) -> alt.Chart:
    tooltip = [
        alt.Tooltip("title:N", title="arm"),
        alt.Tooltip("c:Q", title=load),
        alt.Tooltip("value:Q", title="one block", format=fmt),
    ]
    ticks = alt.Chart(blocks).mark_tick(thickness=1.4, width=9, opacity=0.75)
    return ticks.encode(x=x, y=alt.Y("value:Q"), color=color, tooltip=tooltip)


def over_load(
    frame: pd.DataFrame,
    *,
    y_title: str,
    fmt: str = ",.3~g",
    scale: alt.Scale | None = None,
    y_axis: alt.Axis | None = None,
    floor: float = 0.0,
    drop: int = 0,
    titles: list[str] | None = None,
    under: alt.Chart | None = None,
    interval: bool = False,
    name: str = "",
) -> alt.LayerChart:
    """Line chart of a quantity over load.

    Parameters
    ----------
    frame : DataFrame
        As described at the top of this file.
    y_title : str
        Quantity and unit.
    floor : float
        Where the cross of a point without a value stands.
    drop : int
        Arms at the head of the run's order that are not drawn; the others keep their looks.
    titles : list of str, optional
        Arm titles in the run's order, when ``frame`` does not hold all of them.
    under : Chart, optional
        A layer below the lines, such as a reference rule.
    interval : bool
        Draw ``low`` to ``high`` where the frame has them, in place of a tick per block.
    """
    titles = titles or arm_titles(frame)
    frame = frame.assign(mean=frame["mean"].astype(float).replace(np.inf, np.nan))
    channels = arm_channels(titles, drop)
    kind = axis_of(frame)
    load = LOADS[kind][0]
    x = load_axis(sorted(frame["c"].unique().tolist()), kind)
    y = alt.Y(
        "mean:Q",
        title=y_title,
        scale=scale or alt.Scale(zero=True),
        axis=y_axis or alt.Axis(tickCount=5, domain=False, ticks=False),
    )
    plain = frame.drop(columns=["values", "lines", "axis"], errors="ignore")
    plain = plain.assign(stretch=_stretches(plain))
    base = alt.Chart(plain).encode(x=x, y=y, tooltip=_tooltip(y_title, fmt, load))
    lines = base.mark_line(strokeWidth=2.2, interpolate="linear").encode(
        color=channels["color"], strokeDash=channels["strokeDash"], detail="stretch:N"
    )
    derived = plain["derived"].astype(bool) if "derived" in plain else plain["c"] < 0
    looks = {"color": channels["color"], "shape": channels["shape"]}
    dots = base.properties(data=plain[~derived]).encode(**looks)
    layers = [lines, dots.mark_point(size=62, filled=True, opacity=1, strokeWidth=0)]
    if derived.any():  # worked out from a printed ratio: an open marker
        layers.append(_derived(plain[derived], base, looks))
    bars = plain.dropna(subset=["low", "high"]) if interval else plain.iloc[:0]
    if len(bars):
        layers.insert(
            0,
            alt.Chart(bars)
            .mark_rule(strokeWidth=1.6, opacity=0.55)
            .encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"]),
        )
    blocks = _blocks(frame)
    if len(blocks) and not len(bars):
        layers.insert(1, _ticks(blocks, x, channels["color"], fmt, load))
    gone = _missing(frame, floor)
    if len(gone):
        layers.append(
            alt.Chart(gone)
            .mark_text(text="×", fontSize=19, dy=-5)
            .encode(
                x=x,
                y=alt.Y("floor:Q"),
                color=channels["color"],
                tooltip=[
                    alt.Tooltip("title:N", title="arm"),
                    alt.Tooltip("c:Q", title=load),
                    alt.Tooltip("status:N"),
                    alt.Tooltip("reason:N"),
                ],
            )
        )
    if under is not None:
        layers.insert(0, under)
    over = "concurrency" if kind == "lanes" else "arrival rate"
    return finish(alt.layer(*layers), HEIGHT, name or f"{y_title} over {over}, one line per arm")


def throughput(frame: pd.DataFrame) -> alt.LayerChart:
    """Output tokens per second over load (`over_load` of ``output_tok_s``)."""
    return over_load(frame, y_title="output throughput (tok/s)")


def ttft(frame: pd.DataFrame) -> alt.LayerChart:
    """Median time to first token over load (``ttft_s_p50``)."""
    return over_load(frame, y_title="TTFT p50 (s)")


def acceptance(frame: pd.DataFrame) -> alt.LayerChart:
    """Acceptance length over load (``accept_len``) of the arms that draft.

    1 is an iteration without an accepted draft: the baseline's, which is not drawn.
    """
    titles = arm_titles(frame)
    top = max([1.5, *frame["mean"].dropna()])
    drafting = frame[frame["title"] != titles[0]]
    return over_load(
        drafting,
        y_title="acceptance length (tokens per iteration)",
        floor=1.0,
        drop=1,
        titles=titles,
        scale=alt.Scale(domain=[1, top * 1.05], nice=True, zero=False),
    )


def iteration_time(frame: pd.DataFrame) -> alt.LayerChart:
    """Iteration time over load, in milliseconds (``iteration_s_p50`` in seconds)."""
    ms = frame.assign(
        mean=frame["mean"].astype(float) * 1e3,
        values=[[v * 1e3 for v in values] for values in frame["values"]],
    )
    return over_load(ms, y_title="iteration time p50 (ms)")

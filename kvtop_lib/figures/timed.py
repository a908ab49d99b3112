"""Charts of recorded iterations: their parts, their yield, their course over time.

They take the frames of `kvtop_lib.iterations` and `kvtop_lib.acceptance` with the arm's ``title``.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from kvtop_lib.figures.style import INK, arm_channels, finish

# Okabe and Ito, "Color Universal Design" (2008), and greys for what is not model work.
PARTS = {
    "draft": "#E69F00",
    "n-gram look-up": "#CC79A7",
    "verify": "#0072B2",
    "forward": "#56B4E9",
    "draft-extend": "#D55E00",
    "schedule": "#009E73",
    "launch": "#666666",
    "post-process": "#999999",
    "recorder": "#BBBBBB",
    "unmarked": "#DDDDDD",
}
"""Colour of each part of an iteration."""


def _part_colour(seen: pd.Series) -> alt.Color:
    there = set(seen)
    names = [p for p in PARTS if p in there]
    return alt.Color(
        "part:N",
        scale=alt.Scale(domain=names, range=[PARTS[p] for p in names]),
        legend=alt.Legend(title=None, orient="top", columns=5),
    )


def split_by_batch(frame: pd.DataFrame) -> alt.Chart:
    """Iteration time by batch size as stacked parts, a row of bars per arm and width.

    ``frame``: `kvtop_lib.iterations.split` with ``title``. Parts stack in the order of an
    iteration; the height is the mean iteration time in milliseconds.
    """
    shown = frame[frame["seconds"] > 0].assign(
        ms=frame["seconds"] * 1e3,
        panel=frame["title"] + ", " + frame["width"].astype(int).astype(str) + " verified",
        place=frame["part"].map({p: i for i, p in enumerate(PARTS)}),
    )
    chart = (
        alt.Chart(shown)
        .mark_bar()
        .encode(
            x=alt.X("bs:O", title="requests in the batch", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("ms:Q", title="iteration (ms)", stack="zero"),
            color=_part_colour(shown["part"]),
            order=alt.Order("place:Q"),
            row=alt.Row("panel:N", title=None, sort=None, header=alt.Header(labelAnchor="start")),
            tooltip=[
                "part:N",
                "bs:O",
                alt.Tooltip("ms:Q", format=".2f"),
                alt.Tooltip("iterations:Q", format=",d"),
            ],
        )
    )
    return finish(chart, 110, "iteration time by part, batch size and width")


def tokens_and_time(frame: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Tokens of an iteration against its time; lines from the origin are equal throughput.

    ``frame``: `kvtop_lib.iterations.work` with ``title``. At one load, the arm whose point lies
    above the line through another's decodes faster than it.
    """
    channels, data = arm_channels(titles), frame.assign(ms=frame["iteration_s"] * 1e3)
    base = alt.Chart(data.drop(columns=["lines"], errors="ignore")).encode(
        x=alt.X("ms:Q", title="time of an iteration (ms)", scale=alt.Scale(zero=True)),
        y=alt.Y("tokens:Q", title="tokens of an iteration", scale=alt.Scale(zero=True)),
        tooltip=[
            alt.Tooltip("title:N", title="arm"),
            "c:Q",
            alt.Tooltip("tokens:Q", format=".2f"),
            alt.Tooltip("ms:Q", format=".2f"),
            alt.Tooltip("tok_s:Q", title="tokens per second", format=",.1f"),
        ],
    )
    path = base.mark_line(strokeWidth=1.4, opacity=0.8).encode(
        color=channels["color"], strokeDash=channels["strokeDash"], order="c:Q"
    )
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(
        color=channels["color"], shape=channels["shape"]
    )
    text = base.mark_text(dy=-11, fontSize=11).encode(text="c:Q")
    return finish(alt.layer(path, dots, text), 320, "tokens and time of an iteration")


def over_time(frame: pd.DataFrame, column: str, y_title: str, titles: list[str]) -> alt.Chart:
    """A quantity of `kvtop_lib.iterations.over_time` over the window, a line per arm."""
    channels = arm_channels(titles)
    chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=1.6, interpolate="step-after")
        .encode(
            x=alt.X("at_s:Q", title="seconds from the start of the window"),
            y=alt.Y(f"{column}:Q", title=y_title, scale=alt.Scale(zero=True)),
            color=channels["color"],
            strokeDash=channels["strokeDash"],
            tooltip=["title:N", "at_s:Q", alt.Tooltip(f"{column}:Q", format=".3g")],
        )
    )
    return finish(chart, 180, f"{y_title} over time")


def timeline(frame: pd.DataFrame) -> alt.Chart:
    """Parts of single iterations as bars over time (`kvtop_lib.iterations.timeline`)."""
    names = [p for p in PARTS if p in set(frame["part"])]
    chart = (
        alt.Chart(frame)
        .mark_bar(height=14)
        .encode(
            x=alt.X(
                "start_s:Q", title="seconds from the window's start", scale=alt.Scale(zero=False)
            ),
            x2="end_s:Q",
            y=alt.Y("part:N", title=None, sort=names),
            color=_part_colour(frame["part"]).legend(None),
            tooltip=["part:N", "mode:N", "bs:Q", "i:Q", alt.Tooltip("start_s:Q", format=".4f")],
        )
    )
    return finish(chart, 24 * max(1, len(names)), "timeline of iterations")


def accept_len_by(
    frame: pd.DataFrame, column: str, x_title: str, titles: list[str]
) -> alt.LayerChart:
    """Acceptance length by a grouping (turn, context, width, source), a line per arm."""
    channels = arm_channels(titles, drop=1)
    base = alt.Chart(frame).encode(
        x=alt.X(f"{column}:O", title=x_title, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("accept_len:Q", title="acceptance length", scale=alt.Scale(zero=False)),
        tooltip=["title:N", f"{column}:O", alt.Tooltip("accept_len:Q", format=".3f")],
    )
    lines = base.mark_line().encode(color=channels["color"], strokeDash=channels["strokeDash"])
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        color=channels["color"], shape=channels["shape"]
    )
    return finish(alt.layer(lines, dots), 200, f"acceptance length by {x_title}")


def beside_golden(frame: pd.DataFrame, golden: pd.DataFrame, titles: list[str]) -> alt.LayerChart:
    """Acceptance length by width: this run's arms, and published models as grey marks.

    ``frame``: ``title``, ``width``, ``accept_len``; ``golden``: `kvtop_lib.acceptance.golden`.
    """
    channels = arm_channels(titles, drop=1)
    marks = golden.assign(name=golden["model"] + ", thinking " + golden["thinking"])
    x = alt.X("width:Q", title="tokens verified per forward", axis=alt.Axis(format="d"))
    y = alt.Y("accept_len:Q", title="acceptance length", scale=alt.Scale(zero=False))
    others = (
        alt.Chart(marks)
        .mark_line(color=INK, opacity=0.45, strokeWidth=1, point={"color": INK, "opacity": 0.45})
        .encode(x=x, y=y, detail="name:N", tooltip=["name:N", "width:Q", "accept_len:Q"])
    )
    own = (
        alt.Chart(frame)
        .mark_point(size=80, filled=True, opacity=1)
        .encode(
            x=x,
            y=y,
            color=channels["color"],
            shape=channels["shape"],
            tooltip=["title:N", "width:Q", alt.Tooltip("accept_len:Q", format=".3f")],
        )
    )
    return finish(alt.layer(others, own), 260, "acceptance length beside published models")

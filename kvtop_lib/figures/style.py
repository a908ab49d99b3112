"""How arms and axes look: Okabe-Ito colours, one dash and one marker per arm, no own background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

INK = "currentColor"  # the page's text colour: one chart serves the light and the dark theme
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

# Okabe and Ito, "Color Universal Design" (2008), in the order of their contrast on both themes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ([6, 2], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4], [4, 4])
_SHAPES = ("square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")


@dataclass(frozen=True)
class ArmStyle:
    """Look of one arm."""

    title: str
    colour: str
    dash: tuple[int, ...]
    shape: str


def styles(titles: list[str]) -> list[ArmStyle]:
    """Styles of arms in the order of the run; the first (the baseline) is drawn in ink."""
    look = [ArmStyle(titles[0], INK, (1, 0), "circle")] if titles else []
    for i, title in enumerate(titles[1:]):
        k, again = i % len(_COLOURS), i // len(_COLOURS)
        # a colour that returns comes with another dash and marker, themselves paired anew
        dash, shape = ((k + n * again) % len(_COLOURS) for n in (1, 2))
        look.append(ArmStyle(title, _COLOURS[k], tuple(_DASHES[dash]), _SHAPES[shape]))
    return look


def arm_titles(frame: pd.DataFrame) -> list[str]:
    """Distinct titles of a frame in the order of their first row."""
    return list(dict.fromkeys(frame["title"]))


_LETTER_PX, _SYMBOL_PX, _GAP_PX = 6.4, 24, 18  # of a legend's entry at its font size


def top_legend(names: list[str], **look: Any) -> alt.Legend:
    """Legend above a chart with as many columns as the longest of its names leaves room for.

    Vega cuts what exceeds the limit of a label and lets what exceeds the chart run out of it, so
    both follow the chart's width.
    """
    column = round(_LETTER_PX * max(map(len, names), default=0)) + _SYMBOL_PX + _GAP_PX
    return alt.Legend(
        title=None,
        orient="top",
        direction="horizontal",
        columns=alt.ExprRef(f"max(1, floor((width + {_GAP_PX}) / {column}))"),
        labelLimit=alt.ExprRef(f"max(120, width - {_SYMBOL_PX})"),
        columnPadding=_GAP_PX,
        offset=6,
        **look,
    )


def arm_channels(titles: list[str], drop: int = 0) -> dict[str, Any]:
    """Colour, dash and shape of the column ``title`` with one shared legend.

    ``drop`` leaves out the first arms (a ratio has no baseline) without shifting the others.
    """
    look = styles(titles)[drop:]
    domain = [s.title for s in look]
    legend = top_legend(domain, symbolSize=70, symbolStrokeWidth=0, symbolOpacity=1)

    def scale(values: list) -> alt.Scale:
        return alt.Scale(domain=domain, range=values)

    return {
        "color": alt.Color("title:N", scale=scale([s.colour for s in look]), legend=legend),
        "strokeDash": alt.StrokeDash(
            "title:N", scale=scale([list(s.dash) for s in look]), legend=legend
        ),
        "shape": alt.Shape("title:N", scale=scale([s.shape for s in look]), legend=legend),
    }


LOADS = {
    "lanes": ("c", "concurrency c (requests in flight)", "d"),
    "rates": ("starts/s", "arrival rate (session starts per second)", "~g"),
}
"""Short name, title and number format of each kind of load."""


def axis_of(frame: pd.DataFrame) -> str:
    """Kind of load of a frame's rows: its column ``axis``, else lanes.

    Raises
    ------
    ValueError
        When lanes and rates are mixed, which no axis can hold.
    """
    kinds = list(dict.fromkeys(frame["axis"])) if "axis" in frame else []
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} do not go on one axis")
    return kinds[0] if kinds else "lanes"


def load_axis(loads: list[float], kind: str = "lanes") -> alt.X:
    """Load on a log2 axis with a tick at every measured one."""
    low, high = min(loads), max(loads)
    return alt.X(
        "c:Q",
        title=LOADS[kind][1],
        scale=alt.Scale(type="log", base=2, domain=[low / 1.12, high * 1.12], nice=False),
        axis=alt.Axis(values=sorted(loads), format=LOADS[kind][2], grid=False),
    )


def finish(chart: alt.LayerChart | alt.Chart, height: int, name: str) -> alt.LayerChart | alt.Chart:
    """Container width, fixed height, and the house's quiet axes."""
    return (
        chart.properties(
            width="container", height=height, description=name, background="transparent"
        )
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            domainColor=INK,
            tickColor=INK,
            gridColor=INK,
            gridOpacity=0.13,
            domainOpacity=0.45,
            tickOpacity=0.45,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelOpacity=0.85,
            titlePadding=8,
        )
        .configure_legend(labelColor=INK, labelFontSize=12.5, titleColor=INK)
        .configure_text(color=INK, fontSize=12)
        .configure_header(labelColor=INK, titleColor=INK)
    )

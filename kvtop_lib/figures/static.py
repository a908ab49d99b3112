"""Charts as files: a JSON spec for the page's runtime, SVG for readers without it, PNG for docs."""

from __future__ import annotations

import copy
import re
from typing import Any

import altair as alt
import vl_convert as vlc
from IPython.display import HTML

VL_VERSION = alt.SCHEMA_VERSION.lstrip("v").rsplit(".", 1)[0]
"""Vega-Lite version of the specs, for ``vl_convert``."""

STATIC_WIDTH = 640  # pixels; the page's text column

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
REPLACEMENT = "\ufffd"


def printable(value: Any) -> Any:
    """Text without characters that no XML, hence no SVG, can hold; nested values alike.

    Control characters and lone surrogates of a record become U+FFFD, so that a reader sees that
    something stood there.
    """
    if isinstance(value, str):
        return _UNPRINTABLE.sub(REPLACEMENT, value)
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [printable(v) for v in value]
    return value


def to_spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite spec as the page embeds it (container width).

    It is not held against the schema of Vega-Lite, which takes far longer than the rest; the tests
    do that with every kind of chart.
    """
    return printable(chart.to_dict(validate=False))


def _fixed(chart: alt.TopLevelMixin | dict, width: int) -> dict[str, Any]:
    spec = copy.deepcopy(chart if isinstance(chart, dict) else to_spec(chart))
    spec["width"] = width
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def to_svg(chart: alt.TopLevelMixin | dict, width: int = STATIC_WIDTH, label: str = "") -> str:
    """SVG text that scales to its container and takes the page's ink.

    ``label`` becomes the accessible name; ids are dropped, so several SVGs fit one page.
    """
    svg = vlc.vegalite_to_svg(_fixed(chart, width), vl_version=VL_VERSION)
    size = re.search(r'<svg[^>]*?width="([\d.]+)"[^>]*?height="([\d.]+)"', svg)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_attribute(label)}" '
        f'viewBox="0 0 {size[1]} {size[2]}" width="{size[1]}" height="{size[2]}"'
    )
    return re.sub(r"<svg[^>]*", lambda _: head, svg, count=1)


def _attribute(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def show(chart: alt.TopLevelMixin) -> HTML:
    """The chart as a picture in a notebook's output: no network, and it follows the theme."""
    return HTML(f'<div style="max-width:{STATIC_WIDTH}px">{to_svg(chart)}</div>')


def to_png(chart: alt.TopLevelMixin | dict, width: int = 900, scale: float = 2.0) -> bytes:
    """PNG on white (``currentColor`` is drawn in black)."""
    spec = _fixed(chart, width) | {"background": "white"}
    return vlc.vegalite_to_png(spec, vl_version=VL_VERSION, scale=scale)

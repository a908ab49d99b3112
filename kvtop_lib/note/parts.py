"""Pieces of the page as HTML: tiles, figures with their evidence, tables. Records are escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
from markupsafe import Markup, escape

from kvtop_lib.figures import to_spec, to_svg
from kvtop_lib.figures.static import STATIC_WIDTH
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value

HALF_WIDTH = 330  # pixels of a static chart that shares its row


class Html(str):
    """HTML that a notebook shows as such and nbconvert passes on."""

    def _repr_html_(self) -> str:
        return str(self)


def script_json(obj: Any) -> Markup:
    """JSON that is safe inside a ``<script>`` element, whatever the strings in it."""
    text = json.dumps(obj, separators=(",", ":"), ensure_ascii=False)
    return Markup(
        text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


@dataclass(frozen=True)
class Tile:
    """One headline number."""

    big: Value | str
    label: Markup
    detail: Markup = Markup("")
    tone: str = ""  # "gain", "loss" or ""

    def html(self) -> Markup:
        """The tile."""
        return Markup(
            '<div class="tile {tone}"><div class="big">{big}</div><div class="label">{label}</div>'
            '<div class="detail">{detail}</div></div>'
        ).format(tone=self.tone, big=self.big, label=self.label, detail=self.detail)


def figure(plate: Plate, number: Value | None, beside: Markup) -> Html:
    """A figure, usable with and without the chart runtime.

    Parameters
    ----------
    plate : Plate
        Charts, data and caption.
    number : Value or None
        None for the core result.
    beside : Markup
        Method block and evidence line.
    """
    claim, body = plate.caption
    label = Markup("Figure {}").format(number) if number else Markup(plate.label)
    width = STATIC_WIDTH if len(plate.charts) == 1 else HALF_WIDTH
    heads = plate.labels or ("",) * len(plate.charts)
    charts = Markup("").join(
        _chart(chart, f"{claim.striptags()} {head}".strip(), width, head)
        for chart, head in zip(plate.charts, heads, strict=True)
    )
    if plate.charts:
        charts = Markup('<div class="charts n{}">{}</div>').format(len(plate.charts), charts)
    return Html(
        Markup(
            '<figure id="fig-{name}" class="fig"><div class="kicker">{label} · {kind}</div>'
            "{charts}{sheet}"
            "<figcaption><strong>{claim}</strong> {body}</figcaption>"
            '<div class="margin">{beside}</div>{data}</figure>'
        ).format(
            name=plate.name, label=label, kind=plate.kind, charts=charts, sheet=_sheet(plate),
            claim=claim, body=body, beside=beside, data=data_block(plate.name, plate.table),
        )
    )  # fmt: skip


def _sheet(plate: Plate) -> Markup:
    """The table that is shown, if there is one."""
    if plate.sheet is None:
        return Markup("")
    return table(plate.sheet, f"table of {plate.name}")


def _chart(chart: alt.TopLevelMixin, label: str, width: int, head: str) -> Markup:
    spec = to_spec(chart)
    return Markup(
        '<div class="chart">{head}<div class="static">{svg}</div>'
        '<div class="live" role="group" aria-label="{label}" hidden></div>'
        '<script type="application/json" class="spec">{spec}</script></div>'
    ).format(
        head=Markup('<div class="chart-head">{}</div>').format(head) if head else "",
        svg=Markup(to_svg(spec, width, label)),
        label=label,
        spec=script_json(spec),
    )


def data_block(name: str, frame: pd.DataFrame) -> Markup:
    """The table behind a figure, folded away, with a CSV to download."""
    csv = base64.b64encode(frame.to_csv(index=False).encode()).decode()
    return Markup(
        '<details class="data"><summary>Data of this figure</summary>{table}<p>'
        '<a download="{name}.csv" href="data:text/csv;charset=utf-8;base64,{csv}">Download as CSV'
        "</a></p></details>"
    ).format(table=table(frame, f"data of figure {name}"), name=name, csv=csv)


def _cell(value: Any) -> Markup:
    if isinstance(value, Value):
        cls = Markup(' class="n"') if value.value is not None else ""
        return Markup("<td{}>{}</td>").format(cls, value)
    if isinstance(value, float):
        text = "–" if pd.isna(value) else f"{value:.4g}"
        return Markup('<td class="n">{}</td>').format(text)
    if isinstance(value, int) or hasattr(value, "dtype"):
        return Markup('<td class="n">{}</td>').format(value)
    return Markup("<td>{}</td>").format("–" if value is None else value)


def table(frame: pd.DataFrame, name: str = "data table") -> Markup:
    """A plain table; numbers to the right, every text escaped."""
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(c) for c in frame.columns)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell(v) for v in row))
        for row in frame.astype(object).itertuples(index=False, name=None)
    )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(name, head, body)


def definition(rows: Sequence[tuple[str, Any]], kind: str) -> Markup:
    """A definition list; rows without a value are left out."""
    items = Markup("").join(
        Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(name, value)
        for name, value in rows
        if value
    )
    return Markup('<dl class="{}">{}</dl>').format(kind, items)


def paragraphs(*texts: Markup) -> Html:
    """Paragraphs of prose; empty ones are left out."""
    return Html(Markup("").join(Markup("<p>{}</p>").format(t) for t in texts if t))


def heading(text: str) -> Markup:
    """A heading of a part that only some pages have."""
    return Markup("<h2>{}</h2>").format(text)


def section(html: Any, cls: str) -> Html:
    """A division with a class."""
    return Html(Markup('<div class="{}">{}</div>').format(cls, escape(html)))

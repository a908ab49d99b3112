"""Prose whose every number is traced: sentences are templates, values carry their source.

A template with a digit in it is refused, and so is a bare number as an argument: a number enters
the page as a `Value`, which becomes a span that names the record and the field it was read from.

Sources are written so that a reader (and a test) can recompute them::

    results.jsonl#L3:output_tok_s              one field of one line
    results.jsonl#L3,L27:mean(output_tok_s)    mean over lines
    results.jsonl#L3,L27:sum(counts.timeout)   sum over lines
    results.jsonl#L9/L3,L33/L27:ratio(...)     geometric mean of line over line
    results.jsonl:count(status=ok)             lines that count (last attempts) with a status
    manifest.json#profile.window_s             a field of another file of the run
    iterations.parquet#A|B,C|D:ratio(batch)    geometric mean of factors over pairs of points
    factors.jsonl#A|B,C|D:ratio(batch)         the same in a published copy of a run

Those of published tables are listed in `kvtop_lib.tables.quoted`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from kvtop_lib.figures.static import printable

NBSP = "\u00a0"  # a number and its unit stay on one line
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Value:
    """A number or text out of a record: what is shown, where it stands, and the number itself."""

    text: str
    source: str
    value: float | None = None
    cls: str = "v"

    def __html__(self) -> Markup:
        number = "" if self.value is None else Markup(' data-value="{}"').format(float(self.value))
        return Markup('<span class="{}" data-source="{}"{}>{}</span>').format(
            self.cls, printable(self.source), number, printable(self.text)
        )

    def __str__(self) -> str:
        return self.text


def _checked(name: str, part: Any) -> Any:
    if hasattr(part, "__html__"):
        return part
    if isinstance(part, str) and not _DIGIT.search(part):
        return part
    raise TypeError(f"{{{name}}} = {part!r}: a number in prose must be a Value with its source")


def say(template: str, **parts: Any) -> Markup:
    """A sentence as safe HTML.

    Parameters
    ----------
    template : str
        Text without digits and with ``{names}``; it may hold markup, it is ours.
    **parts
        `Value`, `Markup`, or text without digits (escaped).

    Raises
    ------
    TypeError
        When a number was typed instead of computed.
    """
    if _DIGIT.search(template):
        raise TypeError(f"typed number in prose: {template!r}")
    template = template.replace(" = {", f"{NBSP}={NBSP}{{")  # ``n = {n}`` stays on one line
    return Markup(template).format(**{k: _checked(k, v) for k, v in parts.items()})


def listing(parts: list[Any], last: str = "and") -> Markup:
    """``a``, ``a and b``, ``a, b and c``."""
    items = [escape(_checked("item", p)) for p in parts]
    if len(items) < 2:
        return Markup("").join(items)
    return Markup(", ").join(items[:-1]) + Markup(f" {last} ") + items[-1]


def minus(text: str) -> str:
    """Typographic minus sign."""
    return text.replace("-", "−")


def percent(ratio: float, digits: int | None = None) -> str:
    """Change that a ratio is, ``+12 %``, rounded half to even.

    Without ``digits`` one decimal below ten percent and none from there on.
    """
    change = (ratio - 1) * 100
    if digits is None:
        digits = 0 if abs(change) >= 9.95 else 1
    text = f"{change:+.{digits}f}"
    return ("0" if float(text) == 0 else minus(text)) + f"{NBSP}%"


def quantity(value: float, unit: str = "") -> str:
    """Three significant digits with thousands separators, and the unit."""
    if value == 0 or not math.isfinite(value):
        text = "0" if value == 0 else "∞"
    else:
        places = max(0, 2 - math.floor(math.log10(abs(value))))
        text = minus(f"{value:,.{places}f}")
    return f"{text}{NBSP}{unit}" if unit else text

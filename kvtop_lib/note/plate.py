"""One figure or table before it is set into a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt
import pandas as pd
from markupsafe import Markup

from kvtop_lib.figures.static import printable
from kvtop_lib.note.captions import Caption
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.stats import RATES


@dataclass(frozen=True)
class Plate:
    """One figure, or a table without charts.

    ``data`` is the table behind it; its column ``lines`` holds lines of ``origin``. ``sheet`` is
    a table that is shown, whose numbers are `kvtop_lib.note.prose.Value` each. ``label`` stands
    where there is no number.
    """

    name: str
    charts: tuple[alt.TopLevelMixin, ...]
    data: pd.DataFrame
    caption: Caption
    metric: Markup
    numbered: bool = True
    labels: tuple[str, ...] = ()
    rests_on: Evidence | None = None  # None: the evidence of the page
    kind: str = "measured"
    origin: str = "results.jsonl"
    sheet: pd.DataFrame | None = None
    label: str = "Core result"

    @property
    def lines(self) -> list[int]:
        """Lines of the records that the figure rests on."""
        items = [item for entry in self.data.get("lines", []) for item in entry]
        return [n for item in items for n in (item if isinstance(item, tuple) else (item,))]

    @property
    def table(self) -> pd.DataFrame:
        """Data with lines as text and no nested values, for a table or a CSV."""
        frame = self.data.drop(columns=["values", "lines", "axis"], errors="ignore")
        if "axis" in self.data and (self.data["axis"] == RATES).all():
            frame = frame.rename(columns={"c": "starts_s"})
        if "lines" not in self.data:
            return frame.map(printable)
        lines = [", ".join(_pair(x) for x in entry) for entry in self.data["lines"]]
        return frame.assign(**{self.origin: lines}).map(printable)


def _pair(item: int | tuple[int, int]) -> str:
    return "/".join(f"L{n}" for n in item) if isinstance(item, tuple) else f"L{item}"


Maker = Callable[[Evidence], Plate | None]

"""Tables of a run: flat frames for figures and prose, and the README's table."""

from kvtop_lib.tables.frames import (
    BASELINE,
    FIELDS,
    arms,
    by_load,
    pick,
    points,
    ratios,
    titled,
    titles,
)
from kvtop_lib.tables.quoted import MEASURES, Cell, QuotedRun
from kvtop_lib.tables.readme import readme_table, write_readme
from kvtop_lib.tables.relative import decomposition, yield_and_cost

__all__ = [
    "BASELINE",
    "FIELDS",
    "MEASURES",
    "Cell",
    "QuotedRun",
    "arms",
    "by_load",
    "decomposition",
    "pick",
    "points",
    "ratios",
    "readme_table",
    "titled",
    "titles",
    "write_readme",
    "yield_and_cost",
]

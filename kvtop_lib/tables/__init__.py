"""Tables of a run: flat frames for figures and prose, and the README's table."""

from kvtop_lib.tables.frames import (
    BASELINE,
    FIELDS,
    arms,
    by_load,
    by_position,
    geometric_mean,
    pick,
    points,
    ratios,
    titles,
)
from kvtop_lib.tables.readme import readme_table, write_readme

__all__ = [
    "BASELINE",
    "FIELDS",
    "arms",
    "by_load",
    "by_position",
    "geometric_mean",
    "pick",
    "points",
    "ratios",
    "readme_table",
    "titles",
    "write_readme",
]

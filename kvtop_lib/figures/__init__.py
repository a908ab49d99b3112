"""Charts of a run: data frames in, Altair charts out; nothing here reads a file.

Every arm is told apart three ways (colour, dash, marker), so that a chart survives colour
blindness, greyscale print and both page themes.
"""

from kvtop_lib.figures.by_load import (
    acceptance,
    iteration_time,
    over_load,
    ratio_to_baseline,
    throughput,
    ttft,
)
from kvtop_lib.figures.drafts import by_position, decomposition, yield_and_cost
from kvtop_lib.figures.pair import pair
from kvtop_lib.figures.static import show, to_png, to_spec, to_svg
from kvtop_lib.figures.style import ArmStyle, styles

__all__ = [
    "ArmStyle",
    "acceptance",
    "by_position",
    "decomposition",
    "iteration_time",
    "over_load",
    "pair",
    "ratio_to_baseline",
    "show",
    "styles",
    "throughput",
    "to_png",
    "to_spec",
    "to_svg",
    "ttft",
    "yield_and_cost",
]

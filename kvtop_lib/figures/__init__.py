"""Charts of a run: data frames in, Altair charts out; nothing here reads a file.

Every arm is told apart three ways (colour, dash, marker), so that a chart survives colour
blindness, greyscale print and both page themes.
"""

from kvtop_lib.figures.active import active_requests
from kvtop_lib.figures.by_load import acceptance, iteration_time, over_load, throughput, ttft
from kvtop_lib.figures.drafts import by_position, decomposition, yield_and_cost
from kvtop_lib.figures.judged import predicted, verdicts
from kvtop_lib.figures.pair import pair
from kvtop_lib.figures.ratio import ratio_to_baseline
from kvtop_lib.figures.static import show, to_png, to_spec, to_svg
from kvtop_lib.figures.style import ArmStyle, styles
from kvtop_lib.figures.timed import (
    accept_len_by,
    beside_golden,
    over_time,
    split_by_batch,
    timeline,
    tokens_and_time,
)
from kvtop_lib.figures.widths import widths_by_load

__all__ = [
    "ArmStyle",
    "accept_len_by",
    "acceptance",
    "active_requests",
    "beside_golden",
    "by_position",
    "decomposition",
    "iteration_time",
    "over_load",
    "over_time",
    "pair",
    "predicted",
    "ratio_to_baseline",
    "show",
    "split_by_batch",
    "styles",
    "throughput",
    "timeline",
    "to_png",
    "to_spec",
    "to_svg",
    "tokens_and_time",
    "ttft",
    "verdicts",
    "widths_by_load",
    "yield_and_cost",
]

"""Statistics of a run: ratios within blocks, intervals where repeats allow them, and their limits.

The statistical unit is a repeat: the same point in another block (server launch).
"""

from kvtop_lib.stats.bootstrap import BOOTSTRAP_BLOCKS, bootstrap
from kvtop_lib.stats.components import Components, Design, of_ratios
from kvtop_lib.stats.crossover import Crossover, crossover, crossovers
from kvtop_lib.stats.divergence import divergence, same_rate
from kvtop_lib.stats.loads import LANES, OPEN, RATES, axes, first_axis, load_axis, on_axis
from kvtop_lib.stats.power import detectable, planned, power
from kvtop_lib.stats.ratios import GROUP, block_ratios, how_sure, summarise
from kvtop_lib.stats.search import RateSearch, highest_rate, ladder
from kvtop_lib.stats.verdicts import Floor, holm, multiplicity, noise_floor, verdicts

__all__ = [
    "BOOTSTRAP_BLOCKS",
    "GROUP",
    "LANES",
    "OPEN",
    "RATES",
    "Components",
    "Crossover",
    "Design",
    "Floor",
    "RateSearch",
    "axes",
    "block_ratios",
    "bootstrap",
    "crossover",
    "crossovers",
    "detectable",
    "divergence",
    "first_axis",
    "highest_rate",
    "holm",
    "how_sure",
    "ladder",
    "load_axis",
    "multiplicity",
    "noise_floor",
    "of_ratios",
    "on_axis",
    "planned",
    "power",
    "same_rate",
    "summarise",
    "verdicts",
]

"""How much of a ratio a run lets noise explain: by its launches, by its A/A pair, or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats as distributions

from kvtop_lib import stats
from kvtop_lib.terms import KvtopError

METRIC = "output_tok_s"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Noise:
    """What a run says about noise.

    Attributes
    ----------
    components : variance between and within launches (`kvtop_lib.stats.components`), of all arms.
    floor : of the A/A pair.
    blocks : in which arms were compared.
    confidence : of the intervals.
    """

    components: stats.Components
    floor: stats.Floor
    blocks: int
    confidence: float = 0.95

    @classmethod
    def of(cls, points: pd.DataFrame, confidence: float = 0.95) -> Noise:
        """Noise of a run's points (`kvtop_lib.store.Run.results` of closed loops).

        Raises
        ------
        KvtopError
            When the baseline, or everything else, has no point that is ok.
        """
        ratios = stats.block_ratios(points, METRIC)
        if ratios.empty:
            raise KvtopError("no arm but the baseline has a point that is ok; run the sweep")
        floor = stats.noise_floor(stats.summarise(ratios, confidence))
        return cls(stats.of_ratios(ratios), floor, int(ratios["block"].nunique()), confidence)

    def mean(self, pairs: pd.DataFrame) -> dict[str, Any]:
        """Geometric mean of the ratio of two arms over loads, with an interval.

        All loads weigh the same, and so do the blocks of a load. The points of a launch share
        its luck at all loads. There is no interval where a load has one block only.

        Parameters
        ----------
        pairs
            ``c``, ``block``, ``log`` (of the ratio); one row per pair of points.

        Returns
        -------
        dict
            ``n`` (fewest blocks of a load), ``ratio``, ``low``, ``high``, ``p`` (two-sided); the
            last three are NaN without an interval.
        """
        size = pairs.groupby("c")["block"].transform("size")
        weight = 1.0 / (size * pairs["c"].nunique())
        mean = float((weight * pairs["log"]).sum())
        launch = 2.0 * np.square(weight.groupby(pairs["block"]).sum()).sum()  # of both arms
        variance, df = self.components.variance(launch, 2.0 * np.square(weight).sum())
        se, df = (math.sqrt(variance), float(df)) if size.min() > 1 else (math.nan, 0.0)
        half = float(distributions.t.ppf((1 + self.confidence) / 2, df)) * se if df else math.nan
        p = float(2 * distributions.t.sf(abs(mean) / se, df)) if df and se else math.nan
        return {
            "n": int(size.min()), "ratio": math.exp(mean), "low": math.exp(mean - half),
            "high": math.exp(mean + half), "p": p,
        }  # fmt: skip

    def verdicts(self, frame: pd.DataFrame) -> pd.Series:
        """`kvtop_lib.stats.verdicts` of rows of `mean`; ``not measured`` without a ratio."""
        numbers = frame.astype({k: float for k in ("ratio", "low", "high")})
        found = stats.verdicts(numbers, self.floor).astype(object)
        return found.mask(numbers["ratio"].isna(), NOT_MEASURED)

    @property
    def band(self) -> float | None:
        """Ratio of at least 1 up to which noise explains one block; None: intervals or nothing."""
        if self.blocks > 1 or not self.floor.loads:
            return None
        return math.exp(max(self.floor.limit(self.confidence), math.log(self.floor.ratio)))

    def __str__(self) -> str:
        if self.blocks > 1:
            text = (
                f"n = {self.blocks} blocks; {self.confidence:.0%} t intervals on log ratios, "
                "launch variance pooled over loads and arms"
            )
            return f"{text}; {self.floor}" if self.floor.loads else text
        if self.band:
            return f"n = 1 block; {self.floor}, so noise explains ratios up to {self.band:.3g}"
        return "n = 1 block and no A/A pair: no band, nothing tells a difference from noise"

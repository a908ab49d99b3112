"""Percentile bootstrap over blocks, from the number of blocks on at which it is worth anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from kvtop_lib.terms import KvtopError

BOOTSTRAP_BLOCKS = 12
"""Fewer blocks are refused: over 3 to 8 a nominal 95 % interval covers 75 to 88 % only. At 12 it
covers 90 to 93 % (`tests/unit/test_stats_coverage.py`), which a caption has to say."""


def bootstrap(
    ratios: ArrayLike, confidence: float = 0.95, resamples: int = 1999, seed: int = 1
) -> tuple[float, float]:
    """Interval of the geometric mean ratio over blocks.

    Parameters
    ----------
    ratios
        Ratios of one arm at one load, one per block.
    confidence
        Nominal coverage; the real one is lower, see `BOOTSTRAP_BLOCKS`.
    resamples, seed
        Of the bootstrap.

    Raises
    ------
    KvtopError
        With fewer than `BOOTSTRAP_BLOCKS` blocks, or a ratio that is not positive.
    """
    values = np.asarray(ratios, float)
    if len(values) < BOOTSTRAP_BLOCKS:
        raise KvtopError(
            f"a bootstrap over {len(values)} blocks would claim more than it knows; use the "
            f"t interval (stats.summarise) below {BOOTSTRAP_BLOCKS} blocks"
        )
    if not (values > 0).all():
        raise KvtopError("ratios must be positive; leave out blocks without both points")
    low, high = percentile_intervals(np.log(values)[None], confidence, resamples, seed)
    return float(np.exp(low[0])), float(np.exp(high[0]))


def percentile_intervals(
    logs: np.ndarray, confidence: float, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile intervals of the mean over the last axis, of any number of blocks."""
    found = stats.bootstrap(
        (logs,), np.mean, axis=-1, confidence_level=confidence, n_resamples=resamples,
        method="percentile", batch=100, rng=np.random.default_rng(seed),
    )  # fmt: skip
    return found.confidence_interval.low, found.confidence_interval.high

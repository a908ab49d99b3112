"""How often, where and by how little outputs part that should be equal.

For arms that cannot be equal bit by bit (bfloat16, a GPU's kernels, sampling): the rate is held
against that of the A/A pair, since a server there parts from itself too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

QUANTILES = (10, 50, 90)


def divergence(
    lengths: Sequence[int],
    positions: Mapping[int, int],
    gaps: Iterable[float] = (),
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Rate and place of first differences between two sets of outputs of the same prompts.

    Parameters
    ----------
    lengths
        Tokens of the reference's outputs.
    positions
        Output (index into `lengths`) -> tokens that agree before the first difference.
    gaps
        Log-probability of the reference's token minus that of the other at a first difference,
        both read by one server, where known (nats).
    confidence
        Of the interval of the share (Clopper and Pearson, "The Use of Confidence or Fiducial
        Limits", Biometrika 1934).

    Returns
    -------
    dict
        ``outputs``, ``diverged``, ``share``, ``low``, ``high``; ``per_1000_tokens`` (first
        differences per 1000 compared tokens: an output is compared up to its first difference);
        ``position`` and ``gap`` (of the magnitudes): quantiles ``p10``, ``p50``, ``p90`` over the
        outputs that part, None without any; ``gaps`` (how many are known).
    """
    n, parted = len(lengths), len(positions)
    compared = sum(positions[i] + 1 if i in positions else t for i, t in enumerate(lengths))
    found: dict[str, Any] = {"outputs": n, "diverged": parted, "share": None}
    if n:
        bounds = stats.binomtest(parted, n).proportion_ci(confidence, method="exact")
        found |= {"share": parted / n, "low": float(bounds.low), "high": float(bounds.high)}
    known = [abs(x) for x in gaps]
    return found | {
        "per_1000_tokens": 1000 * parted / compared if compared else None,
        "position": _quantiles(list(positions.values())),
        "gap": _quantiles(known),
        "gaps": len(known),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {f"p{q}": float(np.percentile(values, q)) for q in QUANTILES}


def same_rate(one: tuple[int, int], other: tuple[int, int]) -> float:
    """p-value of Fisher's exact test that outputs part as often in both.

    Parameters
    ----------
    one, other
        Outputs that part, and all outputs: of an arm and of the A/A pair.
    """
    table = [[parted, n - parted] for parted, n in (one, other)]
    return float(stats.fisher_exact(table).pvalue)

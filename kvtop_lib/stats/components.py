"""How much two measurements of the same thing differ: variance between launches and within them.

Model of the logarithm of a metric, for arm ``a``, cell ``l`` (workload and load) and block ``b``::

    y[a, l, b] = arm[a, l] + block[l, b] + launch[a, b] + rest[a, l, b]

``arm`` and ``block`` are fixed, so what the servers of a block share cancels. ``launch`` is common
to all points of one server lifetime, ``rest`` belongs to one point. Loads of one launch are
therefore no independent repeats, and neither are ratios to one baseline; counting them as such
gives intervals that are too narrow. Both variances are estimated by Henderson's method 3 (in a
balanced plan: the mean squares of the analysis of variance), degrees of freedom after
Satterthwaite (Biometrics Bulletin 2, 1946). With two blocks and a single drafting arm, i.e. one
degree of freedom between launches, nominal 95 % intervals cover about 92 %; with more of either
they cover 93 to 97 % (`tests/unit/test_stats_coverage.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Components:
    """Estimated variances of the log of a metric, pooled over cells and arms.

    Attributes
    ----------
    ss_launch, ss_rest : sums of squares; a scalar, or one per simulated run.
    df_launch, df_rest : their degrees of freedom.
    spread : expected weight of the launch variance in `ss_launch`; points per launch times
        `df_launch` in a balanced plan.
    """

    ss_launch: Floats
    ss_rest: Floats
    df_launch: int
    df_rest: int
    spread: float

    @property
    def rest(self) -> Floats:
        """Variance of one point within a launch; 0 where a launch has one point only."""
        return self.ss_rest / self.df_rest if self.df_rest else np.zeros_like(self.ss_rest)

    @property
    def launch(self) -> Floats:
        """Variance between launches of one arm; unbiased, so an estimate may be negative."""
        if not self.df_launch:
            return np.full_like(self.ss_launch, np.nan)
        return (self.ss_launch - self.df_launch * self.rest) / self.spread

    def variance(self, launch: ArrayLike, rest: ArrayLike) -> tuple[Floats, Floats]:
        """Variance ``launch * var(launch) + rest * var(rest)`` and its degrees of freedom.

        NaN and 0 when no launch was repeated.
        """
        launch, rest = np.asarray(launch, float), np.asarray(rest, float)
        if not self.df_launch:
            nothing = np.zeros(np.broadcast_shapes(launch.shape, rest.shape, self.rest.shape))
            return nothing * np.nan, nothing
        between = launch / self.spread * self.ss_launch
        within = np.maximum(rest - launch * self.df_launch / self.spread, 0) * self.rest
        total = between + within
        # a launch mean square that came out small by chance would claim too many degrees of
        # freedom, so here, not in the variance, it enters with the factor of its mean square
        weight = between * (1 + 2 / self.df_launch)
        noise = weight**2 / self.df_launch
        if self.df_rest:
            noise = noise + within**2 / self.df_rest
        with np.errstate(invalid="ignore", divide="ignore"):
            df = np.where(noise > 0, (weight + within) ** 2 / noise, self.df_launch)
        return total, df


class Design:
    """Which points there are; the linear algebra is done once for any number of data sets.

    Parameters
    ----------
    arm, cell, block : labels of the points, equally long.
    """

    def __init__(self, arm: ArrayLike, cell: ArrayLike, block: ArrayLike) -> None:
        arms, cells, blocks = (pd.factorize(np.asarray(x))[0] for x in (arm, cell, block))
        fixed = np.hstack([_dummies(arms, cells), _dummies(blocks, cells)])
        launches = _dummies(arms, blocks)
        self._fixed = _basis(fixed)
        both = _basis(np.hstack([fixed, launches]))
        self._both = both
        self.df_launch = both.shape[1] - self._fixed.shape[1]
        self.df_rest = len(arms) - both.shape[1]
        self.spread = float(len(arms) - (np.square(self._fixed.T @ launches)).sum())

    def components(self, y: ArrayLike) -> Components:
        """Variances of logarithms `y`, of shape (points,) or (points, runs)."""
        y = np.asarray(y, float)
        y = y - self._fixed @ (self._fixed.T @ y)
        explained = np.square(self._both.T @ y).sum(axis=0)
        whole = np.square(y).sum(axis=0)
        rest = np.maximum(whole - explained, 0.0)
        return Components(explained, rest, self.df_launch, self.df_rest, self.spread)


def of_ratios(ratios: pd.DataFrame) -> Components:
    """Components from ratios to a baseline (`kvtop_lib.stats.block_ratios`).

    The block effects are free, so that a baseline of log 0 in each of them carries the same
    information as the baseline's own measurements.
    """
    keys = ["workload", "c", "block"]
    own = ratios[["arm", *keys]].assign(y=np.log(ratios["ratio"].astype(float)))
    base = own[keys].drop_duplicates().assign(arm="\0baseline", y=0.0)
    rows = pd.concat([own, base], ignore_index=True)
    cell = rows["workload"].astype(str) + "\0" + rows["c"].astype(str)
    return Design(rows["arm"], cell, rows["block"]).components(rows["y"])


def _dummies(a: NDArray, b: NDArray) -> Floats:
    """One column of 0 and 1 per pair of labels that occurs."""
    _, pair = np.unique(np.stack([a, b]), axis=1, return_inverse=True)
    return np.eye(pair.max() + 1)[pair.ravel()] if len(a) else np.zeros((0, 0))


def _basis(columns: Floats) -> Floats:
    """Orthonormal basis of the columns' span."""
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    return u[:, s > 1e-9 * max(s[0], 1.0)] if len(s) else u

"""Simulated runs with known truth, many at once: what the intervals of a plan are worth.

`tests/unit/test_stats_coverage.py` holds the fast versions, `notebooks/60_simulation.ipynb` the
full ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from kvtop_lib.stats.bootstrap import percentile_intervals
from kvtop_lib.stats.components import Components, Design
from kvtop_lib.stats.crossover import weights

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """A plan and the noise of a machine; standard deviations of the log of a metric.

    Attributes
    ----------
    effects : true log ratio of every arm but the baseline at every load; shape (arms - 1, loads).
    blocks : server launches per arm.
    launch_sd : between launches, common to the points of one.
    rest_sd : of a point.
    block_sd : of what all servers of a block share at a load.
    """

    effects: Floats
    blocks: int
    launch_sd: float = 0.02
    rest_sd: float = 0.015
    block_sd: float = 0.03

    @property
    def arms(self) -> int:
        """Arms, the baseline included."""
        return len(self.effects) + 1

    @property
    def loads(self) -> int:
        """Loads per launch."""
        return self.effects.shape[1]

    def draw(self, runs: int, seed: int) -> Floats:
        """Logs of the metric, shape (arms, loads, blocks, runs); the baseline is arm 0."""
        rng, a, c, b = np.random.default_rng(seed), self.arms, self.loads, self.blocks
        truth = np.vstack([np.zeros((1, c)), self.effects])[:, :, None, None]
        launch = rng.normal(0, self.launch_sd, (a, 1, b, runs))
        rest = rng.normal(0, self.rest_sd, (a, c, b, runs))
        return truth + rng.normal(0, self.block_sd, (1, c, b, runs)) + launch + rest


@dataclass(frozen=True)
class Simulated:
    """What the analysis makes of many simulated runs.

    Attributes
    ----------
    world : the truth.
    mean, se, df : of every log ratio, shape (arms - 1, loads, runs); the last two (runs,).
    parts : variance components, one per run.
    """

    world: World
    mean: Floats
    se: Floats
    df: Floats
    parts: Components

    def half(self, confidence: float = 0.95) -> Floats:
        """Half widths of the intervals, per run."""
        return stats.t.ppf((1 + confidence) / 2, self.df) * self.se

    def coverage(self, confidence: float = 0.95) -> Floats:
        """Share of the runs whose interval holds the truth; shape (arms - 1, loads)."""
        off = np.abs(self.mean - self.world.effects[:, :, None])
        return (off <= self.half(confidence)).mean(axis=-1)

    def detected(self, confidence: float = 0.95) -> Floats:
        """Share of the runs whose interval leaves out 'equal'; shape (arms - 1, loads)."""
        return (np.abs(self.mean) > self.half(confidence)).mean(axis=-1)

    def level_at(self, loads: Floats, at: float, confidence: float = 0.95) -> Floats:
        """Share of the runs in which load `at` lies in the crossover's interval, per arm."""
        x, n = np.log(np.asarray(loads, float)), set(range(self.world.blocks))
        i = int(np.clip(np.searchsorted(x, np.log(at)) - 1, 0, len(x) - 2))
        share = np.array((np.log(at) - x[i]) / (x[i + 1] - x[i]))
        var, df = self.parts.variance(*weights(share, n, n))
        limit = stats.t.ppf((1 + confidence) / 2, df) * np.sqrt(var)
        curve = (1 - share) * self.mean[:, i] + share * self.mean[:, i + 1]
        return (np.abs(curve) <= limit).mean(axis=-1)


def analyse(world: World, runs: int = 2000, seed: int = 1) -> Simulated:
    """Simulate runs and analyse each as `kvtop_lib.stats.summarise` does."""
    y = world.draw(runs, seed)
    mean = (y[1:] - y[:1]).mean(axis=2)
    labels = np.indices(y.shape[:3]).reshape(3, -1)
    parts = Design(*labels).components(y.reshape(-1, runs))
    variance, df = parts.variance(2 / world.blocks, 2 / world.blocks)
    return Simulated(world, mean, np.sqrt(variance), df, parts)


def coverage_table(worlds: dict[str, World], runs: int = 2000, seed: int = 1) -> pd.DataFrame:
    """Measured coverage of nominal 95 % intervals.

    Returns
    -------
    DataFrame
        ``plan``, ``arms``, ``loads``, ``blocks``, ``coverage`` (mean over arms and loads),
        ``lowest``, ``highest`` (of one arm at one load), ``df`` (median), ``half_width`` (median,
        log ratio).
    """
    rows = []
    for name, world in worlds.items():
        found = analyse(world, runs, seed)
        covered = found.coverage()
        rows.append(
            {
                "plan": name, "arms": world.arms, "loads": world.loads, "blocks": world.blocks,
                "coverage": covered.mean(), "lowest": covered.min(), "highest": covered.max(),
                "df": np.median(found.df), "half_width": np.median(found.half()),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def bootstrap_coverage(blocks: int, runs: int = 2000, seed: int = 1, sd: float = 0.03) -> float:
    """Measured coverage of the nominal 95 % percentile bootstrap over so many blocks."""
    logs = np.random.default_rng(seed).normal(0, sd, (runs, blocks))
    low, high = percentile_intervals(logs, 0.95, 499, seed)
    return float(((low <= 0) & (high >= 0)).mean())


def turning(loads: Floats, at: float, slope: float, arms: int = 1) -> Floats:
    """Effects that are linear in the log of the load and cross 'equal' at load `at`."""
    line = -slope * (np.log(np.asarray(loads, float)) - np.log(at))
    return np.tile(line, (arms, 1))

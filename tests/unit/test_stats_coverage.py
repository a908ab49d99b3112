"""Simulated runs with known truth: how often intervals, verdicts and crossovers are right."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvtop_lib import stats
from kvtop_lib.stats import simulate
from kvtop_lib.stats.simulate import World, analyse
from kvtop_lib.terms import KvtopError

RUNS = 2000
LOADS = np.array([1, 2, 4, 8, 16, 32])
PLANS = {  # arms without the baseline, loads, blocks: as the profiles use them
    "full": (6, 6, 2),
    "two arms, two blocks": (2, 6, 2),
    "three blocks": (4, 6, 3),
    "thorough": (9, 3, 4),
}
NOISE = {"launches differ": (0.03, 0.01), "both": (0.02, 0.015), "points differ": (0.0, 0.03)}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("plan", PLANS)
def test_nominal_95_percent_intervals_cover_93_to_97(plan, noise):
    arms, loads, blocks = PLANS[plan]
    launch, rest = NOISE[noise]
    effects = np.random.default_rng(3).normal(0, 0.1, (arms, loads))
    covered = analyse(World(effects, blocks, launch, rest), RUNS, seed=5).coverage()
    assert 0.93 <= covered.mean() <= 0.97
    assert 0.92 <= covered.min() and covered.max() <= 0.98  # one cell: standard error 0.5 %


def test_taking_the_loads_of_a_launch_for_repeats_would_not_cover():
    world = World(np.zeros((2, 6)), 2, launch_sd=0.03, rest_sd=0.01)
    y = world.draw(RUNS, 5)
    d = y[1:] - y[:1]
    df = d.shape[0] * d.shape[1]  # (blocks - 1) per arm and load, as if independent
    s = np.sqrt(((d - d.mean(axis=2, keepdims=True)) ** 2).sum(axis=(0, 1, 2)) / df)
    half = simulate.stats.t.ppf(0.975, df) * s / np.sqrt(2)
    assert (np.abs(d.mean(axis=2)) <= half).mean() < 0.90


def test_one_simulated_run_is_analysed_as_a_real_one():
    world = World(np.array([[0.2, 0.0, -0.2]] * 2), 3)
    y, many = world.draw(4, 9), analyse(world, 4, 9)
    rows = [
        (("baseline", "x", "y")[a], c, b, np.exp(y[a, c, b, 2]))
        for a in range(3) for c in range(3) for b in range(3)
    ]  # fmt: skip
    points = pd.DataFrame(rows, columns=["arm", "c", "block", "v"]).assign(
        workload="w", status="ok", line=range(27)
    )
    one = stats.summarise(stats.block_ratios(points, "v"))
    assert np.log(one.ratio).to_numpy() == pytest.approx(many.mean[:, :, 2].ravel())
    assert one.se.to_numpy() == pytest.approx(np.full(6, many.se[2]))
    assert one.df.to_numpy() == pytest.approx(np.full(6, many.df[2]))


def test_an_a_a_pair_is_called_level_at_the_nominal_rate():
    seen = analyse(World(np.zeros((3, 2)), 3), RUNS, seed=11).detected()
    assert seen == pytest.approx(np.full((3, 2), 0.05), abs=0.02)


def test_variances_are_recovered():
    parts = analyse(World(np.zeros((4, 6)), 4, 0.02, 0.015), RUNS, seed=2).parts
    assert parts.launch.mean() == pytest.approx(0.02**2, rel=0.05)
    assert parts.rest.mean() == pytest.approx(0.015**2, rel=0.05)


def test_the_planned_minimum_detectable_effect_is_detected_four_times_in_five():
    size = stats.planned(0.02, 0.015, arms=4, loads=3, blocks=4)
    world = World(np.full((3, 3), np.log1p(size)), 4, 0.02, 0.015)
    assert analyse(world, RUNS, seed=8).detected().mean() == pytest.approx(0.8, abs=0.04)
    assert np.isnan(stats.planned(0.02, 0.015, arms=4, loads=3, blocks=1))
    with pytest.raises(KvtopError, match="two arms"):
        stats.planned(0.02, 0.015, arms=1, loads=3, blocks=4)


@pytest.mark.parametrize("at", [2.0, 6.0, 20.0])
@pytest.mark.parametrize("blocks", [2, 4])
def test_a_crossover_lies_in_its_interval_as_often_as_it_says(at, blocks):
    world = World(simulate.turning(LOADS, at, 0.1, 3), blocks)
    held = analyse(world, RUNS, seed=4).level_at(LOADS, at)
    assert 0.93 <= held.mean() <= 0.975


def test_a_crossover_is_recovered():
    world = World(simulate.turning(LOADS, 6.0, 0.15, 1), 4)
    y = world.draw(60, 21)
    found = []
    for run in range(60):
        d = (y[1, :, :, run] - y[0, :, :, run]).mean(axis=1)
        parts = analyse(world, 60, 21).parts if not found else parts  # noqa: F821
        one = stats.Components(
            parts.ss_launch[run], parts.ss_rest[run], parts.df_launch, parts.df_rest, parts.spread
        )
        found.append(stats.crossover(LOADS, d, [{0, 1, 2, 3}] * 6, one))
    loads = np.array([c.load for c in found])
    assert np.median(loads) == pytest.approx(6.0, rel=0.05)
    inside = [c.low <= 6.0 <= c.high for c in found if c.low and c.high]
    assert len(inside) > 50 and np.mean(inside) > 0.85


def test_a_bootstrap_is_refused_where_it_does_not_cover():
    assert simulate.bootstrap_coverage(4, 1000) < 0.90
    assert 0.89 <= simulate.bootstrap_coverage(12, 1000) <= 0.96
    with pytest.raises(KvtopError, match="more than it knows"):
        stats.bootstrap([1.1] * 11)
    low, high = stats.bootstrap(np.exp(np.linspace(-0.1, 0.3, 12)))
    assert 1.0 < low < np.exp(0.1) < high < 1.3

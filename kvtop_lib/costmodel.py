"""A model of the iteration time, fitted on half of the points and tested on the other half.

``time = a + b x verified tokens + d x KV tokens + e x drafted tokens``, all coefficients at least
0: a floor (reading the weights), a price per row of the forward, per token of context read, and
per token drafted. Beside it the published formulae that predict a speed-up from acceptance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize

from kvtop_lib.terms import KvtopError

TERMS = ("floor", "verified", "kv", "drafted")


@dataclass(frozen=True)
class CostModel:
    """Coefficients in seconds: per iteration, and per verified, KV and drafted token.

    ``points`` is how many the fit rests on.
    """

    floor: float
    verified: float
    kv: float
    drafted: float
    points: int

    def iteration_s(self, verified: ArrayLike, kv: ArrayLike, drafted: ArrayLike = 0.0):
        """Predicted iteration time, seconds; arguments are tokens per iteration."""
        v, k, d = (np.asarray(x, float) for x in (verified, kv, drafted))
        return self.floor + self.verified * v + self.kv * k + self.drafted * d

    def tok_s(self, batch: ArrayLike, width: int, kv: ArrayLike, tokens: ArrayLike):
        """Predicted decode rate, tokens/s, of `batch` requests verified at `width`.

        ``tokens`` are committed per request and iteration (1 without drafting), ``kv`` the tokens
        of context in the batch.
        """
        batch = np.asarray(batch, float)
        time = self.iteration_s(batch * width, kv, batch * (width - 1))
        return batch * np.asarray(tokens, float) / time

    def ratio(self, batch: ArrayLike, width: int, kv: ArrayLike, tokens: ArrayLike):
        """Predicted rate of drafting at `width` over no drafting at the same batch."""
        return self.tok_s(batch, width, kv, tokens) / self.tok_s(batch, 1, kv, 1.0)


def fit(points: pd.DataFrame) -> CostModel:
    """Least squares of the relative error, coefficients at least 0.

    Parameters
    ----------
    points
        ``iteration_s``, and per iteration ``verified``, ``kv``, ``drafted`` tokens.

    Raises
    ------
    KvtopError
        With fewer points than coefficients that the points can tell apart.
    """
    y = points["iteration_s"].to_numpy(float)
    terms = points[["verified", "kv", "drafted"]].to_numpy(float)
    x = np.column_stack([np.ones(len(y)), terms]) / y[:, None]
    scale = np.linalg.norm(x, axis=0)
    used = scale > 0
    least = max(used.sum(), 1)  # scipy's nnls aborts the process on no point at all
    if len(y) < least or not (y > 0).all():
        raise KvtopError(f"{len(y)} points do not fit {least} coefficients; measure more loads")
    found = np.zeros(4)
    found[used] = optimize.nnls(x[:, used] / scale[used], np.ones(len(y)))[0] / scale[used]
    return CostModel(*map(float, found), points=len(y))


def halves(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every other point by arm and load for the fit, the rest for the test.

    Loads alternate within an arm, and arms alternate in which load they begin with, so that both
    halves hold every arm and reach over the loads.
    """
    rank = points.groupby("arm", sort=False)["c"].rank(method="dense").astype(int)
    arm = pd.factorize(points["arm"])[0]
    odd = ((rank + arm) % 2 == 1).to_numpy()
    return points[odd], points[~odd]


def tested(points: pd.DataFrame) -> tuple[CostModel, pd.DataFrame]:
    """Fit on one half, predict the other.

    Returns
    -------
    CostModel, DataFrame
        The model, and the held-out points with ``predicted_s`` and ``error`` (relative).
    """
    train, held = halves(points)
    model = fit(train)
    predicted = model.iteration_s(held["verified"], held["kv"], held["drafted"])
    return model, held.assign(predicted_s=predicted, error=predicted / held["iteration_s"] - 1)


def from_results(points: pd.DataFrame, kv_tokens: int | None) -> pd.DataFrame:
    """What the model is fitted on, from points of a run.

    Parameters
    ----------
    points
        `kvtop_lib.tables.points`: ``arm``, ``workload``, ``c``, ``width``, ``decoding_mean``,
        ``iteration_s_p50`` and, where scraped, ``kv_use_mean``.
    kv_tokens
        Capacity of the KV pool in tokens; None leaves the KV term out.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``block``, ``line`` (where given), ``batch``, ``verified``, ``kv``,
        ``drafted``, ``iteration_s``.
    """
    use = points.get("kv_use_mean", pd.Series(0.0, index=points.index)).astype(float)
    width = points["width"].astype(float)
    batch = points["decoding_mean"].astype(float)
    frame = points[["arm", "c", "block", *(k for k in ("line",) if k in points)]].assign(
        batch=batch,
        verified=batch * width,
        kv=use.fillna(0.0) * (kv_tokens or 0),
        drafted=batch * (width - 1),
        iteration_s=points["iteration_s_p50"].astype(float),
    )
    return frame.dropna(subset=["batch", "iteration_s"]).reset_index(drop=True)


def acceptance_rate(by_position: Iterable[Sequence[float]], steps: Iterable[float]) -> float:
    """Acceptance rate of a draft that was tried: accepted over tried, pooled.

    The estimate of Leviathan's alpha where each draft is accepted with one rate whatever its
    place; a draft behind a rejected one was not tried.

    Parameters
    ----------
    by_position
        Per point, P(draft i accepted | draft i - 1 accepted).
    steps
        Per point, verify steps.
    """
    accepted, tried = 0.0, 0.0
    for rates, n in zip(by_position, steps, strict=True):
        reached = np.cumprod([1.0, *rates])  # share of the steps that accepted at least i drafts
        accepted += n * reached[1:].sum()
        tried += n * reached[:-1].sum()
    return float(accepted / tried)


def expected_tokens(alpha: ArrayLike, depth: int):
    """Tokens per verification of a chain of `depth` drafts, each accepted with rate `alpha`.

    ``(1 - alpha^(depth + 1)) / (1 - alpha)``, Leviathan, Kalman and Matias, "Fast Inference from
    Transformers via Speculative Decoding", ICML 2023, equation 1.
    """
    alpha = np.asarray(alpha, float)
    powers = [alpha**i for i in range(depth + 1)]
    return np.sum(powers, axis=0)


def leviathan(alpha: ArrayLike, depth: int, cost: float):
    """Speed-up of a lone request: `expected_tokens` over ``depth x cost + 1`` (their theorem 3.8).

    ``cost`` is one draft step's time over one forward's; verifying several tokens is taken to
    cost no more than one, which is what load takes away.
    """
    return expected_tokens(alpha, depth) / (depth * cost + 1)


def goodput_ratio(alpha: ArrayLike, depth: int, batch: ArrayLike, kv: ArrayLike, model: CostModel):
    """Speed-up under load: expected tokens over the modelled cost of the whole batch.

    The form of SmartSpec (TurboSpec), Liu et al., "Optimizing Speculative Decoding for Serving
    Large Language Models Using Goodput", 2024: committed tokens per second with a batch time
    linear in context and batched tokens. The load-dependent and load-independent shares of Kong
    et al., "An Interpretable Latency Model for Speculative Decoding in LLM Serving", 2026, are its
    slope and its floor.
    """
    return model.ratio(batch, depth + 1, kv, expected_tokens(alpha, depth))


def crossing(loads: ArrayLike, ratios: ArrayLike) -> float:
    """Load at which predicted ratios fall through 1, on a log-load axis; NaN when they do not."""
    x, y = np.log(np.asarray(loads, float)), np.log(np.asarray(ratios, float))
    for i in range(len(x) - 1):
        if y[i] > 0 >= y[i + 1]:
            return float(np.exp(x[i] + (x[i + 1] - x[i]) * y[i] / (y[i] - y[i + 1])))
    return float("nan")

"""Acceptance of drafts, pooled from the counters of single requests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd


def pooled_hist(hists: Iterable) -> np.ndarray:
    """Sum of accepted-drafts histograms of any length: ``[i]`` = steps that accepted i drafts."""
    hists = [np.asarray(h, dtype=int) for h in hists if h is not None and len(h)]
    total = np.zeros(max((len(h) for h in hists), default=0), dtype=int)
    for h in hists:
        total[: len(h)] += h
    return total


def by_position(hist: np.ndarray) -> list[float]:
    """P(draft i accepted | draft i - 1 accepted), i = 1, 2, ...; drafts form a chain.

    The tail sums of the histogram say how many steps accepted at least i drafts. A position
    that no step can reach any more ends the list.
    """
    at_least = hist[::-1].cumsum()[::-1]
    return [float(b / a) for a, b in zip(at_least[:-1], at_least[1:], strict=True) if a > 0]


def acceptance(requests: pd.DataFrame) -> dict:
    """Acceptance over requests, weighted by their verify steps.

    Parameters
    ----------
    requests
        ``status``, ``verify_steps``, ``accepted_hist``, ``proposed_drafts``, ``output_tokens``.

    Returns
    -------
    dict
        ``accept_len`` = 1 + accepted / verify steps, ``accept_rate`` = accepted / proposed,
        ``accept_by_position``, ``verify_steps``, and ``tokens_per_step`` = delivered tokens after
        the first one per verify step. The last is a little lower than ``accept_len``: SGLang
        counts drafts as accepted that lie behind the stop and are never delivered. None without
        drafting.
    """
    r = requests[(requests["status"] == "ok") & requests["accepted_hist"].notna()]
    steps = int(r["verify_steps"].sum())
    if not steps:
        keys = "accept_len accept_rate accept_by_position tokens_per_step verify_steps"
        return dict.fromkeys(keys.split())
    hist = pooled_hist(r["accepted_hist"])
    accepted, proposed = int(hist @ np.arange(len(hist))), r["proposed_drafts"].sum()
    return {
        "accept_len": 1 + accepted / steps,
        "accept_rate": float(accepted / proposed) if proposed else None,
        "accept_by_position": by_position(hist),
        "tokens_per_step": float((r["output_tokens"] - 1).sum() / steps),
        "verify_steps": steps,
    }

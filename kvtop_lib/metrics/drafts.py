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


def by_position(hist: np.ndarray, tried: np.ndarray | None = None) -> list[float]:
    """P(draft i accepted | draft i - 1 accepted), i = 1, 2, ...; drafts form a chain.

    The tail sums of the histogram say how many steps accepted at least i drafts. A position
    that no step can reach any more ends the list.

    Parameters
    ----------
    hist : ``[i]`` = steps that accepted i drafts.
    tried : ``[i]`` = steps in which draft i + 1 was proposed and all before it were accepted; by
        default all that accepted i, which is so when every step proposes as many.
    """
    taken = hist[::-1].cumsum()[::-1]
    tried = taken[:-1] if tried is None else tried
    taken = np.append(taken[1:], np.zeros(max(0, len(tried) - len(taken) + 1), dtype=int))
    return [float(b / a) for a, b in zip(tried, taken[: len(tried)], strict=True) if a > 0]


def request_steps(iterations: pd.DataFrame, keep: list[str]) -> pd.DataFrame:
    """One row per verify step of a request, from recorded iterations.

    Parameters
    ----------
    iterations : columns of ``iterations.parquet``.
    keep : columns to keep; those with lists (``requests``, ``widths``, ``accepted``, ``source``)
        give the request's entry, ``widths`` the width of all unless the record says otherwise.
    """
    rows = iterations[iterations["mode"] == "verify"] if len(iterations) else iterations
    rows = rows.dropna(subset=["accepted"]) if len(rows) else rows  # its results never came
    if rows.empty:
        return pd.DataFrame(columns=keep)
    if "widths" in keep:
        widths = [
            [width] * bs if given is None else given
            for given, width, bs in zip(rows["widths"], rows["width"], rows["bs"], strict=True)
        ]
        rows = rows.assign(widths=widths)
    lists = [k for k in keep if k in ("requests", "widths", "accepted", "source")]
    return rows[keep].explode(lists, ignore_index=True).astype({"accepted": float})


def own_widths(
    requests: pd.DataFrame, iterations: pd.DataFrame | None, widths: Iterable[int] = ()
) -> pd.DataFrame:
    """Requests with the drafts that were really proposed, where the width changed meanwhile.

    SGLang counts every step as if it had proposed the largest width's drafts. The recorded
    iterations know better; without them nothing is known.

    Parameters
    ----------
    requests : as for `acceptance`, with ``response_id``.
    iterations : the point's recorded iterations, if any.
    widths : those that the arm could choose from, if any.

    Returns
    -------
    DataFrame
        ``requests`` as they are when there was one width. Otherwise ``proposed_drafts`` is
        replaced and ``tried`` (list, as in `by_position`) added, both None for a request whose
        steps were not all recorded.
    """
    found = pd.DataFrame(columns=["requests", "widths", "accepted"])
    if iterations is not None:
        found = request_steps(iterations, list(found))
    if len({*widths, *found["widths"].dropna()}) < 2:
        return requests
    steps = dict(list(found.groupby("requests")))
    proposed, tried = [], []
    for name, n in zip(requests["response_id"], requests["verify_steps"], strict=True):
        if (own := steps.get(name)) is None or len(own) != n:
            proposed.append(None)
            tried.append(None)
            continue
        depth, accepted = own["widths"].astype(int) - 1, own["accepted"]
        proposed.append(int(depth.sum()))
        places = range(1, depth.max() + 1)
        tried.append([int(((depth >= i) & (accepted >= i - 1)).sum()) for i in places])
    columns = {"proposed_drafts": proposed, "tried": tried}
    return requests.assign(
        **{k: pd.Series(v, requests.index, dtype=object) for k, v in columns.items()}
    )


def pooled_tries(requests: pd.DataFrame) -> np.ndarray | None:
    """``tried`` of `by_position` over requests; None when all steps proposed as many."""
    if "tried" not in requests or requests["tried"].isna().all():
        return None
    every = []
    for own, hist, steps, proposed in zip(
        requests["tried"], requests["accepted_hist"], requests["verify_steps"],
        requests["proposed_drafts"], strict=True,
    ):  # fmt: skip
        if not isinstance(own, list):  # of a point with one width
            reached = np.asarray(hist, dtype=int)[::-1].cumsum()[::-1]
            own = reached[: int(proposed // steps)]
        every.append(own)
    return pooled_hist(every)


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
        drafting; ``accept_rate`` and ``accept_by_position`` also where it is not known what every
        step proposed (`own_widths`).
    """
    r = requests[(requests["status"] == "ok") & requests["accepted_hist"].notna()]
    steps = int(r["verify_steps"].sum())
    if not steps:
        keys = "accept_len accept_rate accept_by_position tokens_per_step verify_steps"
        return dict.fromkeys(keys.split())
    hist = pooled_hist(r["accepted_hist"])
    known = r["proposed_drafts"].notna().all()
    accepted, proposed = int(hist @ np.arange(len(hist))), r["proposed_drafts"].sum()
    return {
        "accept_len": 1 + accepted / steps,
        "accept_rate": float(accepted / proposed) if known and proposed else None,
        "accept_by_position": by_position(hist, pooled_tries(r)) if known else None,
        "tokens_per_step": float((r["output_tokens"] - 1).sum() / steps),
        "verify_steps": steps,
    }

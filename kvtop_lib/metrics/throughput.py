"""Output rate of the window, and how many requests were in it on average."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvtop_lib.metrics.quantile import percentiles


def window_tokens(arrived: pd.DataFrame, w0_s: float, w1_s: float) -> int:
    """Output tokens whose chunk arrived in ``[w0, w1)``, of whatever request."""
    t = arrived["recv_s"]
    return int(arrived.loc[(t >= w0_s) & (t < w1_s), "gain"].sum())


def mean_between(start_s: pd.Series, end_s: pd.Series, w0_s: float, w1_s: float) -> float:
    """Time average over the window of the number of intervals ``[start, end)`` that are open.

    This is throughput times mean residence (Little) with the parts outside the window cut off.
    """
    inside = np.minimum(end_s, w1_s) - np.maximum(start_s, w0_s)
    return float(inside.clip(lower=0).sum() / (w1_s - w0_s))


def occupancy(requests: pd.DataFrame, scrapes: pd.DataFrame, w0_s: float, w1_s: float) -> dict:
    """Requests in flight and decoding (client), running and queued (server), KV use.

    ``active_mean`` is the server's mean of running requests; without scrapes it is the client's
    mean in flight, and ``active_source`` says which.
    """
    in_flight = mean_between(requests["sent_s"], requests["end_s"], w0_s, w1_s)
    decoding = requests.dropna(subset=["first_token_s", "last_token_s"])
    server = scrapes[(scrapes["t_s"] >= w0_s) & (scrapes["t_s"] < w1_s)]
    mean = {c: server[c].dropna().mean() for c in ("running", "queued")}
    capacity = server[["kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens"]].sum(axis=1)
    use = (server["kv_used_tokens"] / capacity.where(capacity > 0)).dropna()
    scraped = not np.isnan(mean["running"])
    return {
        "in_flight_mean": in_flight,
        "decoding_mean": mean_between(
            decoding["first_token_s"], decoding["last_token_s"], w0_s, w1_s
        ),
        "active_mean": float(mean["running"]) if scraped else in_flight,
        "active_source": "server" if scraped else "client",
        "queued_mean": float(mean["queued"]) if scraped else None,
        "kv_use": {"mean": float(use.mean()), "max": float(use.max())} if len(use) else None,
    }


def flow(requests: pd.DataFrame, window: pd.DataFrame, w0_s: float, w1_s: float) -> dict:
    """Requests per second that the load asked for, and that ended ok, in the window.

    In an open loop the second stays behind the first when the server does not keep up; the
    latencies then grow with the length of the window.

    Parameters
    ----------
    requests, window
        All requests of the point, and those of its window by phase.
    """
    ended = requests["end_s"].between(w0_s, w1_s, inclusive="left") & (requests["status"] == "ok")
    late = percentiles(window["sent_s"] - window["intended_s"], (50, 99, 100))
    return {
        "asked_rate": len(window) / (w1_s - w0_s),
        "ended_rate": float(ended.sum() / (w1_s - w0_s)),
        "send_delay_s": {"p50": late["p50"], "p99": late["p99"], "max": late["p100"]},
    }


def goodput(window: pd.DataFrame, targets: dict[str, float], window_s: float) -> dict:
    """Requests, and their tokens, that meet every latency target, per second of window.

    Parameters
    ----------
    window
        Rows of `per_request` sent in the window.
    targets
        Upper limits in seconds by column: ``ttft_s``, ``tpot_s``, ``e2e_s``.
    window_s
        Length of the window.

    Returns
    -------
    dict
        ``requests_s``, ``tok_s``, ``attainment`` (share of the requests sent in the window that
        meet all; failures and timeouts miss), ``attainment_by_target`` (the share that meets
        each, by its column) and the ``targets``.
    """
    ok = window["status"] == "ok"
    each = {  # no TPOT: all tokens came at once
        column: ok & (window[column].fillna(0.0) <= limit) for column, limit in targets.items()
    }
    met = ok.copy()
    for kept in each.values():
        met &= kept
    return {
        "requests_s": float(met.sum() / window_s),
        "tok_s": float(window.loc[met, "output_tokens"].sum() / window_s),
        "attainment": _share(met),
        "attainment_by_target": {column: _share(kept) for column, kept in each.items()},
        "targets": dict(targets),
    }


def _share(met: pd.Series) -> float | None:
    return float(met.mean()) if len(met) else None

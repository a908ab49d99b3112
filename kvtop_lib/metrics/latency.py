"""Latency of single requests, and the gaps between what arrives."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvtop_lib.metrics.quantile import percentile, percentiles


def arrivals(chunks: pd.DataFrame) -> pd.DataFrame:
    """What arrived together, as one row.

    Events of a request read in one piece share a time and are one arrival: a gap of zero between
    them would be a property of the read, not of the server.

    Parameters
    ----------
    chunks
        ``request``, ``recv_s``, ``tokens_total`` (cumulative; rows without a count are no
        arrivals, for nothing is known about their tokens).

    Returns
    -------
    DataFrame
        ``request``, ``recv_s``, ``tokens_total``, ``gain`` (tokens in the arrival; the first one
        has all its tokens) and ``gap_s`` (since the request's previous arrival, NaN at the first).
    """
    counted = chunks.dropna(subset=["tokens_total"])
    rows = counted.groupby(["request", "recv_s"], as_index=False, sort=True)["tokens_total"].max()
    by = rows.groupby("request")
    rows["gain"] = by["tokens_total"].diff().fillna(rows["tokens_total"]).astype(int)
    rows["gap_s"] = by["recv_s"].diff()
    return rows


def per_request(requests: pd.DataFrame, arrived: pd.DataFrame) -> pd.DataFrame:
    """TTFT, TPOT, end-to-end and iteration time of every request.

    A request that did not end ``ok`` has ``+inf`` for TPOT and end-to-end, whatever it did
    before; one without a first token has ``+inf`` for TTFT.

    Returns
    -------
    DataFrame
        ``requests`` plus ``n_first``, ``n_last`` (tokens at the first and last arrival),
        ``ttft_s``, ``tpot_s`` (NaN when all tokens came at once), ``e2e_s``, ``iteration_s``,
        and ``ttft_intended_s``, ``e2e_intended_s`` from the intended instead of the sent time.
    """
    by = arrived.groupby("request")
    ends = pd.DataFrame(
        {
            "t_first": by["recv_s"].first(),
            "t_last": by["recv_s"].last(),
            "n_first": by["tokens_total"].first(),
            "n_last": by["tokens_total"].last(),
        }
    )
    r = requests.join(ends, on="request")
    ok, after_first = r["status"] == "ok", r["n_last"] - r["n_first"]
    r["n_last"] = r["n_last"].fillna(r["output_tokens"].where(r["output_tokens"] > 0))
    r["ttft_s"] = (r["first_token_s"] - r["sent_s"]).fillna(np.inf)
    tpot = (r["t_last"] - r["t_first"]) / after_first.where(after_first > 0)
    r["tpot_s"] = tpot.where(ok, np.inf)
    r["e2e_s"] = (r["last_token_s"] - r["sent_s"]).where(ok, np.inf)
    late = r["sent_s"] - r["intended_s"]
    r["ttft_intended_s"], r["e2e_intended_s"] = r["ttft_s"] + late, r["e2e_s"] + late
    # a verify step yields (n_last - 1) / steps tokens: prefill made the first one
    steps = r["verify_steps"].astype(float)
    per_step = ((r["n_last"] - 1) / steps.where(steps > 0)).fillna(1.0)
    r["iteration_s"] = (tpot * per_step).where(ok)
    return r


def latencies(window: pd.DataFrame) -> dict:
    """Percentiles over the requests sent in the window (rows of `per_request`), in seconds."""
    tpot = window["tpot_s"].dropna()
    with np.errstate(divide="ignore"):
        decode = np.where(np.isinf(tpot), 0.0, 1.0 / tpot)
        whole = np.where(np.isinf(window["e2e_s"]), 0.0, window["n_last"] / window["e2e_s"])
    return {
        "request_tok_s": {"p50": percentile(whole, 50)},
        "decode_tok_s": {"p50": percentile(decode, 50)},
        "ttft_s": percentiles(window["ttft_s"]),
        "tpot_s": percentiles(tpot),
        "e2e_s": percentiles(window["e2e_s"]),
        "ttft_intended_s": percentiles(window["ttft_intended_s"]),
        "e2e_intended_s": percentiles(window["e2e_intended_s"]),
        "iteration_s": {"p50": percentile(window["iteration_s"].dropna(), 50)},
    }


def gaps(arrived: pd.DataFrame, w0_s: float, w1_s: float) -> dict:
    """Inter-token latency and tokens per arrival of what came in the window.

    ITL of an arrival is its gap divided by its tokens, counted once per token; the first
    arrival of a request has no gap. The plain gap between arrivals is smoothness, not a
    latency per token: with drafting an arrival carries several tokens.
    """
    inside = arrived[(arrived["recv_s"] >= w0_s) & (arrived["recv_s"] < w1_s)].dropna()
    itl = np.repeat((inside["gap_s"] / inside["gain"]).to_numpy(), inside["gain"])
    return {
        "itl_s": percentiles(itl, (50, 99)),
        "chunk_gap_s": percentiles(inside["gap_s"], (50, 99)),
        "tokens_per_chunk": float(inside["gain"].mean()) if len(inside) else None,
    }

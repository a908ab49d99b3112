"""What the recorder saw of a point, and the checks of the client and the gauges against it.

Each check gives what those of `kvtop_lib.metrics.audits` give; one that needs a record which is
not there, or not whole, is not made and says why.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from kvtop_lib.metrics.audits import _audit

LITTLE_SHARE, LITTLE_REQUESTS = 0.05, 1.0
GAUGE_ITERATIONS, GAUGE_S = 12, 1.0  # SGLang refreshes its gauge every 10 decode iterations
GAUGE_SHARE = 0.9
NOT_RECORDED = "the server recorded no iterations"


def read_iterations(folder: Path) -> pd.DataFrame | None:
    """``iterations.parquet`` of a point, in order; None when there is none.

    Returns
    -------
    DataFrame or None
        Columns of `kvtop_lib.engine.iterations_stream.SCHEMA`; ``attrs["recorder"]`` has what the
        recorder said of itself (``complete``, ``kv_tokens``, ``algorithm``, ...).
    """
    file = Path(folder) / "iterations.parquet"
    if not file.is_file():
        return None
    table = pq.read_table(file)
    meta = json.loads((table.schema.metadata or {}).get(b"kvtop", b"{}"))
    frame = table.replace_schema_metadata(None).to_pandas()
    frame.attrs["recorder"] = meta
    return frame


def obstacle(iterations: pd.DataFrame | None) -> str:
    """Why a record cannot be held against anything; empty when it can."""
    if iterations is None:
        return NOT_RECORDED
    meta = iterations.attrs.get("recorder", {})
    if meta.get("complete"):
        return ""
    if str(meta.get("ended")).startswith("failed"):
        return f"the recorder {meta['ended']}"
    if meta.get("missing_from_s") is not None:
        return "the record of iterations ends before the point does: the server was killed or hung"
    return f"{meta.get('dropped', 0)} iterations were dropped from the record"


def recorded_tokens(
    requests: pd.DataFrame, iterations: pd.DataFrame | None, max_output_tokens: int
) -> dict:
    """Token conservation by iteration: tokens committed = output tokens of the client.

    Exact over the drained point when every request ended ok; one that did not may have committed
    more than its client saw, up to its limit.
    """
    if why := obstacle(iterations):
        return _audit(None, None, None, why)
    committed = int(iterations["committed_tokens"].sum())
    seen, cut = int(requests["output_tokens"].sum()), requests["status"] != "ok"
    room = int((max_output_tokens - requests.loc[cut, "output_tokens"]).clip(lower=0).sum())
    reason = (
        f"the client saw {seen} output tokens, the iterations of the server committed {committed}"
    )
    return _audit(seen <= committed <= seen + room, committed, [seen, seen + room], reason)


def recorded_little(
    requests: pd.DataFrame, iterations: pd.DataFrame | None, start_s: float, drained_s: float
) -> dict:
    """Little's law by iteration: mean running + queued = mean in flight at the client.

    Over the drained point: sum of (running + queued) x duration of the iterations, and sum of
    the client's residence times, both divided by the length of the point.
    """
    if why := obstacle(iterations):
        return _audit(None, None, None, why)
    span_s = drained_s - start_s
    inside = iterations["running"] + iterations["queued"].fillna(0)
    server = float((inside * iterations["dur_s"]).sum() / span_s)
    client = float((requests["end_s"] - requests["sent_s"]).sum() / span_s)
    slack = max(LITTLE_SHARE * client, LITTLE_REQUESTS)
    reason = (
        f"on average {server:.2f} requests were running or queued in the iterations and "
        f"{client:.2f} in flight at the client, more than {slack:.2f} apart"
    )
    return _audit(abs(server - client) <= slack, server, [client - slack, client + slack], reason)


def gauge(scrapes: pd.DataFrame, iterations: pd.DataFrame | None) -> dict:
    """The scraped gauge of running requests is one that the recent iterations had.

    SGLang sets it every few decode iterations to their batch, at a prefill to the requests that
    wait for it meanwhile, and to 0 when nothing runs. ``value`` is the share of scrapes that
    agree.
    """
    if why := obstacle(iterations):
        return _audit(None, None, None, why)
    rows = scrapes.dropna(subset=["running"]) if "running" in scrapes else scrapes.iloc[:0]
    it = iterations[iterations["mode"] != "stall"]
    if rows.empty or it.empty:
        return _audit(None, None, None, "no scrape of running requests beside an iteration")
    decodes = it["mode"].isin(["decode", "verify"]).to_numpy()
    shown = np.where(decodes, it["bs"], it["running"] - it["bs"])
    start, end = it["t_s"].to_numpy(), (it["t_s"] + it["dur_s"]).to_numpy()
    fits = [
        value in _shown_at(t, shown, decodes, start, end)
        for t, value in zip(rows["t_s"], rows["running"], strict=True)
        if t >= start[0]
    ]
    if not fits:
        return _audit(None, None, None, "no scrape of running requests beside an iteration")
    share = float(np.mean(fits))
    reason = (
        f"{len(fits) - sum(fits)} of {len(fits)} scrapes showed another number of running requests "
        "than any of the iterations before"
    )
    return _audit(share >= GAUGE_SHARE, share, [GAUGE_SHARE, 1.0], reason)


def _shown_at(
    t_s: float, shown: np.ndarray, decodes: np.ndarray, start: np.ndarray, end: np.ndarray
) -> set[int]:
    """Values that the gauge may show at a time."""
    last = int(np.searchsorted(start, t_s, side="right"))  # iterations that had begun
    recent = np.flatnonzero(decodes[:last])[-GAUGE_ITERATIONS:]
    oldest = recent[0] if len(recent) == GAUGE_ITERATIONS else 0
    first = min(oldest, np.searchsorted(start, t_s - GAUGE_S))
    values = set(shown[first:last].tolist())
    # nothing ran: before the first iteration, after the last, or in a pause between two
    pauses = np.append(start[first + 1 : last], t_s) - end[first:last]
    return values | ({0} if last == 0 or (pauses > 1e-3).any() else set())


def check(rec, max_output_tokens: int) -> dict[str, dict]:
    """Every check against the record of iterations, by name (``rec``: `metrics.Recording`)."""
    start_s, drained_s = rec.facts["clock"]["start_s"], rec.facts["window"]["drained_s"]
    return {
        "recorded_tokens": recorded_tokens(rec.requests, rec.iterations, max_output_tokens),
        "recorded_little": recorded_little(rec.requests, rec.iterations, start_s, drained_s),
        "gauge": gauge(rec.scrapes, rec.iterations),
    }


AUDITS: tuple[tuple[str, str], ...] = (
    (
        "recorded_tokens",
        "tokens committed by the recorded iterations = client output tokens over the drained "
        "point; exact when every request ended ok",
    ),
    (
        "recorded_little",
        "mean running + queued of the recorded iterations, by their durations = mean in flight at "
        f"the client, within the larger of {LITTLE_SHARE:.0%} and {LITTLE_REQUESTS:g} request",
    ),
    (
        "gauge",
        f"at least {GAUGE_SHARE:.0%} of the scraped gauges of running requests show what one of "
        "the recorded iterations just before had",
    ),
)
"""Checks by name, for the table of checks; not made without a whole record."""

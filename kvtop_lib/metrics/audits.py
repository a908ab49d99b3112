"""Checks of one point; a failed one makes it ``invalid``, with the reason in words.

Each check gives ``{"ok": bool or None, "value", "expected", "reason"}``; None means that it
could not be made (the server gave no counter), which is said and does not fail the point.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from kvtop_lib.metrics.counts import REMAIN, kind

LITTLE_SHARE, LITTLE_REQUESTS = 0.05, 0.5
PAGE_TOKENS = 1  # SGLang's page on the CPU; the caller gives the server's where it differs
PREFIX_MISSES = 0.01  # share of turns whose cached tokens may lie outside their bounds
MIN_REQUESTS = 5
TREND_BINS, TREND_SHARE, TREND_P = 10, 0.25, 0.01

AUDITS: tuple[tuple[str, str], ...] = (
    (
        "token_counts",
        "every chunk with output carries the server's cumulative token count; not asked of a "
        "server that counts at the end of a request only, or never: it gets fewer metrics",
    ),
    (
        "tokens",
        "client output tokens = server's `generation_tokens_total` over the drained point; exact "
        "when every request ended ok, otherwise within what those that did not could still yield",
    ),
    (
        "little",
        "mean requests inside the server (its sum of request times / length of the drained point) "
        "= mean in flight at the client over the same time, within the larger of "
        f"{LITTLE_SHARE:.0%} and {LITTLE_REQUESTS:g} request",
    ),
    (
        "prefix_hits",
        "at turns after the first, cached tokens lie between the prior prompt and the prior prompt "
        "plus output, within a page and a token; where a trace tells token blocks, between the "
        "leading blocks of both prompts and those of anything sent before in the point; at most "
        f"{PREFIX_MISSES:.0%} of the turns may miss",
    ),
    (
        "enough_requests",
        f"at least {MIN_REQUESTS} requests, and one per lane, ended ok in the window",
    ),
    (
        "steady",
        f"the halves of the window differ by at most {TREND_SHARE:.0%}, or by no more than "
        f"noise (t test on {TREND_BINS} bins, p = {TREND_P:g}); not asked of "
        "steps and trace arrivals, whose rate changes by itself",
    ),
)
"""Checks by name; one that fails makes the point ``invalid``."""


def _audit(ok: bool | None, value, expected, reason: str = "") -> dict:
    return {"ok": ok, "value": value, "expected": expected, "reason": "" if ok else reason}


def token_counts(requests: pd.DataFrame) -> dict:
    """Every chunk with output carried the server's cumulative token count.

    A server that counts at the end only, or never, allows fewer metrics and no such check.
    """
    if (counts := kind(requests)) != "chunk":
        return _audit(None, None, 0, REMAIN[counts])
    n = int(requests["uncounted_chunks"].sum())
    reason = f"{n} chunks came without a token count (continuous usage): tokens are not known"
    return _audit(n == 0, n, 0, reason)


def tokens(requests: pd.DataFrame, counters: dict, max_output_tokens: int) -> dict:
    """Token conservation: the client's output tokens are the server's, over the whole point.

    The server books a request when it ends, so without failures both sums are equal. A request
    that did not end ok may have been booked with what the client saw, with more (up to its
    limit), or not at all yet.
    """
    name = "generation_tokens_total"
    before, after = (counters.get(k, {}).get(name) for k in ("before", "after"))
    if after is None and before is not None:
        return _audit(False, None, None, f"the server died: its {name} counter is gone")
    if after is None:
        return _audit(None, None, None, f"the server has no {name} counter (--enable-metrics)")
    server, ok = after - (before or 0.0), requests["status"] == "ok"
    low = int(requests.loc[ok, "output_tokens"].sum())
    high = low + int((~ok).sum()) * max_output_tokens
    seen = int(requests["output_tokens"].sum())
    reason = f"the client saw {seen} output tokens, the server counted {server:.0f}"
    return _audit(low <= server <= high, server, [low, high], reason)


def little(requests: pd.DataFrame, counters: dict, span_s: float) -> dict:
    """Little's law: mean requests inside the server = mean in flight at the client.

    Both are seconds of requests over the whole drained point divided by its length; the
    server's are booked when a request ends (sum of its end-to-end latency histogram). The
    gauges of running and queued requests are too coarse for this: SGLang refreshes them at
    prefills, without the requests being prefilled, and every few decode iterations. A request
    that the client gave up may stay with the server as long as the longest that ended ok.
    """
    name = "request_seconds_total"
    before, after = (counters.get(k, {}).get(name) for k in ("before", "after"))
    if after is None:
        return _audit(None, None, None, "the server has no sum of request times (--enable-metrics)")
    server = (after - (before or 0.0)) / span_s
    residence_s, ok = requests["end_s"] - requests["sent_s"], requests["status"] == "ok"
    longest_s = residence_s[ok].max() if ok.any() else 0.0  # an aborted one may go on unnoticed
    most_s = residence_s.where(ok, residence_s.clip(lower=longest_s))
    low, high = float(residence_s[ok].sum() / span_s), float(most_s.sum() / span_s)
    seen = float(residence_s.sum() / span_s)
    slack = max(LITTLE_SHARE * seen, LITTLE_REQUESTS)
    reason = (
        f"on average {server:.2f} requests were inside the server and {seen:.2f} in flight at the "
        f"client, more than {slack:.2f} apart"
    )
    expected = [low - slack, high + slack]  # a request that failed may not be booked
    return _audit(expected[0] <= server <= expected[1], server, expected, reason)


def prefix_hits(requests: pd.DataFrame, page_tokens: int = PAGE_TOKENS) -> dict:
    """Cached tokens of turn k > 0 lie between the prior prompt and prior prompt plus output.

    Within a page and a token, for turns whose prior turn ended ok; a lane's first request is
    cold at whatever turn it starts and has no prior one. A prompt that does not hold all of the
    prior one tells what it does (``shared_tokens``): that many are cached at least. Of a prompt of
    token blocks, at any turn, no token is cached that nothing sent before in the point had
    (``unshared_tokens``). ``value`` is the share outside, at most 1 % of the turns may be.
    """
    r = requests[requests["status"] == "ok"]
    r = r.reindex(columns=[*dict.fromkeys([*r.columns, "shared_tokens", "unshared_tokens"])])
    prior = r[["session", "lane", "turn", "prompt_tokens", "output_tokens"]].assign(
        turn=lambda d: d["turn"] + 1
    )
    turns = r.merge(prior, how="left", on=["session", "lane", "turn"], suffixes=("", "_prior"))
    follows, own = turns["prompt_tokens_prior"].notna(), turns["unshared_tokens"]
    checked = turns["cached_tokens"].notna() & (follows | own.notna())
    if not checked.any():
        text = "no turn with cached tokens to check (--enable-cache-report)"
        return _audit(None, None, None, text)
    part = turns["shared_tokens"].notna()
    low = turns["prompt_tokens_prior"].mask(part, turns["shared_tokens"]).where(follows, 0)
    high = (turns["prompt_tokens_prior"] + turns["output_tokens_prior"]).mask(
        part | own.notna(), turns["prompt_tokens"] - own.astype(float).fillna(0)
    )
    slack = page_tokens + 1
    low, high = (bound[checked].astype(float) for bound in (low - slack, high + slack))
    out = ~turns["cached_tokens"][checked].between(low, high)
    reason = f"{out.sum()} of {len(out)} turns hit less or more of the prefix cache than expected"
    return _audit(bool(out.mean() <= PREFIX_MISSES), float(out.mean()), [0, PREFIX_MISSES], reason)


def enough_requests(requests: pd.DataFrame, c: int | None, w0_s: float, w1_s: float) -> dict:
    """The window is long enough: at least 5 requests, and one per lane, ended in it."""
    ended = requests["end_s"].between(w0_s, w1_s, inclusive="left") & (requests["status"] == "ok")
    n, need = int(ended.sum()), max(MIN_REQUESTS, c or 0)  # an open load has no lanes
    return _audit(
        n >= need, n, need, f"requests that ended in the window: {n} of {need} needed; lengthen it"
    )


def steady(arrived: pd.DataFrame, w0_s: float, w1_s: float, shape: dict | None = None) -> dict:
    """No trend between the halves of the window beyond noise.

    Output rate in ten bins; the halves may differ by a quarter, or by what a two-sided t test on
    five against five bins does not tell from noise at p = 0.01. Lanes that start at the first
    turn grow their histories together, so some trend belongs to the workload, alike in every
    arm; a larger one means that something else used the machine or a queue was building up. A
    load (``shape`` of the records) whose rate itself changes is not held to it.
    """
    if (shape or {}).get("arrivals") in ("steps", "trace"):
        return _audit(None, None, None, "the load itself changes with time")
    edges = np.linspace(w0_s, w1_s, TREND_BINS + 1)
    rate, _ = np.histogram(arrived["recv_s"], edges, weights=arrived["gain"])
    first, second = rate[: TREND_BINS // 2], rate[TREND_BINS // 2 :]
    if not rate.any():
        return _audit(None, None, None, "no tokens in the window")
    change = float((second.mean() - first.mean()) / rate.mean())
    moments = [m for half in (first, second) for m in (half.mean(), half.std(ddof=1), len(half))]
    noisy = first.std() + second.std() > 0 and (
        stats.ttest_ind_from_stats(*moments).pvalue > TREND_P
    )
    reason = f"output changed by {change:+.0%} from the window's first half to its second"
    return _audit(bool(abs(change) <= TREND_SHARE or noisy), change, TREND_SHARE, reason)

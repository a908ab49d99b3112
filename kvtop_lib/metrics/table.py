"""The one table of metrics: name, formula, unit, use, source. ``docs/metrics.md`` is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop_lib.metrics import health, recorded
from kvtop_lib.metrics.audits import AUDITS


@dataclass(frozen=True)
class Metric:
    """One row; ``key`` is the key of ``point.json`` and of a line of ``results.jsonl``."""

    key: str
    name: str
    formula: str
    unit: str
    used_for: str
    source: str


_CLIENT, _COUNTERS, _SERVER = "client, chunks", "server, per request", "server, /metrics at 1 Hz"

METRICS: tuple[Metric, ...] = (
    Metric(
        "output_tok_s", "output throughput",
        "tokens whose chunk arrived in [w0, w1) / (w1 - w0); warm-up requests count with what "
        "arrives inside, the drain does not", "tok/s", "figures 1 and 3", _CLIENT,
    ),
    Metric(
        "request_tok_s", "request rate", "output tokens / (last token - sent), per request",
        "tok/s", "tables", _CLIENT,
    ),
    Metric("ttft_s", "TTFT", "first token - sent", "s", "figure 2", _CLIENT),
    Metric(
        "tpot_s", "TPOT",
        "(t_last - t_first) / (n_last - n_first), per request; t, n: time and cumulative tokens "
        "of its first and last arrival, so the first chunk's tokens count on neither side",
        "s/token", "tables", _CLIENT,
    ),
    Metric(
        "decode_tok_s", "per-stream decode rate", "1 / TPOT, per request", "tok/s", "tables",
        _CLIENT,
    ),
    Metric("e2e_s", "end to end", "last token - sent", "s", "tables", _CLIENT),
    Metric(
        "ttft_intended_s", "TTFT from the intended time",
        "first token - intended; intended: the arrival in an open loop, else the end of the "
        "answer before plus the think time", "s", "open loops", _CLIENT,
    ),
    Metric(
        "e2e_intended_s", "end to end from the intended time", "last token - intended", "s",
        "open loops", _CLIENT,
    ),
    Metric(
        "send_delay_s", "send delay", "sent - intended: p50, p99 and maximum", "s",
        "whether the client kept up", "client",
    ),
    Metric(
        "asked_rate", "asked rate", "requests of the window / window", "1/s",
        "open loops", "client",
    ),
    Metric(
        "ended_rate", "ended rate", "requests that ended ok inside the window / window", "1/s",
        "whether the server kept up", "client",
    ),
    Metric(
        "itl_s", "inter-token latency (ITL)",
        "gap before an arrival / tokens in it, weighted by tokens; a request's first arrival has "
        "no gap", "s/token", "tables", _CLIENT,
    ),
    Metric(
        "chunk_gap_s", "inter-chunk gap", "time between arrivals of one stream", "s",
        "smoothness; never compared across arms", _CLIENT,
    ),
    Metric(
        "tokens_per_chunk", "tokens per chunk", "tokens / arrivals after a request's first",
        "tokens", "reading the gaps", _CLIENT,
    ),
    Metric(
        "goodput", "goodput",
        "requests (and their tokens) that end ok and meet every latency target of the profile / "
        "window; attainment: their share of the requests sent in the window; "
        "attainment_by_target: the share that ends ok and meets one target, by its key",
        "1/s, tok/s, share", "decision", _CLIENT,
    ),
    Metric(
        "counts", "requests by status", "requests sent in the window by how they ended", "requests",
        "beside every rate that failures could distort", "client",
    ),
    Metric(
        "aborted_on_purpose", "drawn to be aborted",
        "requests of the window drawn for an abort by the client (cancel_after_s); in the counts "
        "by how they ended, in throughput, and in no other metric", "requests",
        "cancellation injection", "client",
    ),
    Metric(
        "in_flight_mean", "in flight",
        "time of requests between sent and end inside the window / window", "requests",
        "Little's law", "client",
    ),
    Metric(
        "decoding_mean", "decoding",
        "time of requests between first and last token inside the window / window", "requests",
        "decomposition", _CLIENT,
    ),
    Metric(
        "active_mean", "active",
        "mean of running requests over the window, a gauge that leaves out requests in prefill; "
        "without scrapes in flight (active_source)",
        "requests", "x axis of realised load", _SERVER,
    ),
    Metric(
        "queued_mean", "queued", "mean of queued requests over the window", "requests",
        "admission", _SERVER,
    ),
    Metric(
        "kv_use", "KV use", "used / (used + available + evictable) tokens, mean and maximum",
        "share", "admission", _SERVER,
    ),
    Metric(
        "accept_len", "acceptance length", "1 + sum(accepted drafts) / sum(verify steps), pooled",
        "tokens/step", "acceptance", _COUNTERS,
    ),
    Metric(
        "accept_rate", "acceptance rate",
        "sum(accepted drafts) / sum(proposed drafts), pooled; of an arm with several widths from "
        "the recorded iterations, else not known", "share", "acceptance", _COUNTERS,
    ),
    Metric(
        "accept_by_position", "acceptance by position",
        "P(draft i accepted given that it was proposed and draft i-1 accepted), from the pooled "
        "histogram; of an arm with several widths as the acceptance rate", "share", "acceptance",
        _COUNTERS,
    ),
    Metric(
        "tokens_per_step", "delivered tokens per step",
        "sum(output tokens - 1) / sum(verify steps); below the acceptance length by the drafts "
        "that were accepted behind the stop", "tokens/step", "decomposition", _COUNTERS,
    ),
    Metric(
        "iteration_s", "iteration time",
        "TPOT x (n_last - 1) / verify steps, per request that ended ok, pauses for the prefill of "
        "others included; without drafting a step yields one token and it is the TPOT", "s",
        "iteration timing", "client, chunks, and server, per request",
    ),
    Metric(
        "matches_recorded", "equals the recording",
        "requests whose output text equals the recorded one / requests that ended ok", "share",
        "losslessness", "client",
    ),
)  # fmt: skip

_HEAD = """# Metrics

Made from `kvtop_lib.metrics.table` by `python -m kvtop_lib.metrics`; edit the table, not this page.

Times come from one monotonic clock and are read when bytes arrive, before anything is parsed.
Tokens are counted by the server (cumulative usage on every chunk), never one per chunk and never
by tokenising text again. Events of a stream that were read together are one arrival.

Per-request metrics are over the requests *sent* in the window `[w0, w1)`, in an open loop over
those *intended* in it. None is dropped, but those drawn beforehand to be aborted on purpose: one
without a first token has a TTFT of +inf; one that did not end `ok` has +inf for TPOT and end to
end, and 0 for the rates. Percentiles interpolate linearly and are +inf where they rest on such a
request; JSON holds `"inf"` then. Acceptance and iteration time are over the requests that ended
`ok`, the only ones with counters.

A point has a status: `ok`, `invalid` (a check failed, or its prompts ran out), `failed` (no request
of the window succeeded) or `aborted` (interrupted). Only `ok` carries metrics.
"""


def markdown() -> str:
    """Text of ``docs/metrics.md``."""
    rows = [
        "| key | metric | formula | unit | used for | source |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{m.key}` | {m.name} | {m.formula} | {m.unit} | {m.used_for} | {m.source} |"
            for m in METRICS
        ),
    ]
    checks = [
        "| check | holds when |",
        "|---|---|",
        *(f"| `{k}` | {text} |" for k, text in (*AUDITS, *health.AUDITS, *recorded.AUDITS)),
    ]
    return "\n".join([_HEAD, *rows, "", "## Checks", "", *checks, ""])

"""Pages of ``/metrics`` as SGLang and vLLM write them, by one set of column names.

Names are those of the engines' own documentation. A server with data-parallel copies reports a
gauge once per copy and rank: ranks of one copy say the same thing (the largest is taken), copies
add up, except for shares and lengths, of which the largest is taken too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

GAUGES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:kv_used_tokens": "kv_used_tokens",
    "sglang:kv_available_tokens": "kv_available_tokens",
    "sglang:kv_evictable_tokens": "kv_evictable_tokens",
    "sglang:max_total_num_tokens": "kv_total_tokens",
    "sglang:token_usage": "token_usage",
    "sglang:gen_throughput": "gen_tok_s",
    "sglang:spec_accept_length": "accept_len",
    "sglang:spec_num_draft_tokens": "width_tokens",
    "sglang:weight_memory_usage_gb": "weights_gib",
    "sglang:kv_cache_memory_usage_gb": "kv_pool_gib",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "queued",
    "vllm:kv_cache_usage_perc": "token_usage",
    "vllm:gpu_cache_usage_perc": "token_usage",  # the older name
}
COUNTERS = {
    "sglang:generation_tokens_total": "generation_tokens_total",
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:cached_tokens_total": "cached_tokens_total",
    "sglang:realtime_tokens_total": "realtime_tokens_total",
    "sglang:spec_verify_calls_total": "spec_verify_calls_total",
    "sglang:num_retracted_requests_total": "retracted_total",
    "sglang:time_to_first_token_seconds_sum": "ttft_seconds_total",
    "sglang:time_to_first_token_seconds_count": "ttft_requests_total",
    "sglang:e2e_request_latency_seconds_sum": "request_seconds_total",
    "sglang:e2e_request_latency_seconds_count": "requests_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:prefix_cache_hits_total": "cached_tokens_total",
    "vllm:spec_decode_num_drafts_total": "spec_verify_calls_total",
    "vllm:spec_decode_num_draft_tokens_total": "proposed_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_drafts_total",
    "vllm:num_preemptions_total": "retracted_total",
    "vllm:time_to_first_token_seconds_sum": "ttft_seconds_total",
    "vllm:time_to_first_token_seconds_count": "ttft_requests_total",
    "vllm:e2e_request_latency_seconds_sum": "request_seconds_total",
    "vllm:e2e_request_latency_seconds_count": "requests_total",
}
COLUMNS = tuple(dict.fromkeys((*GAUGES.values(), *COUNTERS.values())))
LARGEST = {"token_usage", "accept_len", "width_tokens"}
TTFT = tuple(f"{e}:time_to_first_token_seconds_bucket" for e in ("sglang", "vllm"))
_CACHE = "vllm:cache_config_info"  # capacity is in its labels
_COPY = ("dp_rank", "engine")  # labels that tell data-parallel copies apart
_WANTED = tuple(n.encode() for n in (*GAUGES, *COUNTERS, _CACHE))
_WANTED_TTFT = tuple(n.encode() for n in TTFT)


@dataclass(frozen=True)
class Page:
    """What one page says.

    Attributes
    ----------
    engine : ``sglang``, ``vllm``, or None when the page is of neither.
    model : the served name.
    values : by column name (`COLUMNS`); absent ones are not known.
    ttft : (upper bound in seconds, requests whose first token came at most so late), cumulative.
    """

    engine: str | None
    model: str | None
    values: dict[str, float]
    ttft: tuple[tuple[float, float], ...] = ()


def keep(page: bytes, *, ttft: bool = False) -> bytes:
    """The lines of a page that `parse` reads; the histogram of first tokens only on request."""
    wanted = _WANTED + _WANTED_TTFT if ttft else _WANTED
    return b"\n".join(line for line in page.splitlines() if line.startswith(wanted))


def parse(page: bytes) -> Page:
    """Read a page.

    Counters are summed over their labels. ``realtime_tokens_total`` counts decoded tokens only.

    Raises
    ------
    ValueError
        When a line of a known name is no sample.
    """
    try:
        return _parse(page)
    except (OverflowError, LookupError) as e:  # a number without end, a line that is cut
        raise ValueError(f"a line is no sample: {e}") from e


def _parse(page: bytes) -> Page:
    counters: dict[str, float] = {}
    gauges: dict[str, dict[str, float]] = {}
    buckets: dict[float, float] = {}
    engine = model = blocks = None
    text = keep(page, ttft=True).decode("utf-8", "replace") + "\n"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, labels, value = sample.name, sample.labels, sample.value
            if labels.get("mode", "decode") != "decode" or not math.isfinite(value):
                continue  # NaN says that it is not known
            if column := GAUGES.get(name):
                copies = gauges.setdefault(column, {})
                copy = next((labels[k] for k in _COPY if k in labels), "")
                copies[copy] = max(copies.get(copy, value), value)
            elif column := COUNTERS.get(name):
                counters[column] = counters.get(column, 0.0) + value
            elif name in TTFT and "le" in labels:
                bound = float(labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + value
            elif name == _CACHE:
                blocks = (blocks or 0.0) + _capacity(labels)
            else:
                continue
            engine = engine or name.split(":")[0]
            model = model or labels.get("model_name")
    values = {c: (max if c in LARGEST else sum)(v.values()) for c, v in gauges.items()} | counters
    return Page(engine, model, values | _kv(values, blocks), tuple(sorted(buckets.items())))


def read(page: bytes) -> dict[str, float]:
    """Values of one page of ``/metrics`` by column name; see `parse`."""
    return parse(page).values


def _capacity(labels: dict[str, str]) -> float:
    """Tokens of vLLM's KV cache, 0 when its labels do not say."""
    try:
        return float(labels["block_size"]) * float(labels["num_gpu_blocks"])
    except (KeyError, ValueError):
        return 0.0


def _kv(values: dict[str, float], blocks: float | None) -> dict[str, float]:
    """KV tokens where only capacity and share are given; blocks that are only cached are free."""
    if not blocks or "token_usage" not in values:
        return {"kv_total_tokens": blocks} if blocks else {}
    used = values["token_usage"] * blocks
    return {
        "kv_total_tokens": blocks,
        "kv_used_tokens": used,
        "kv_available_tokens": blocks - used,
        "kv_evictable_tokens": 0.0,
    }

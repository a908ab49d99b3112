"""What a record says about the server, a batch and its results; reads SGLang, changes nothing."""

from __future__ import annotations

import os
import time
from typing import Any

_HEALTH = "HEALTH_CHECK"  # requests that SGLang sends to itself


def header(scheduler: Any, device: bool) -> dict[str, Any]:
    """First line of a stream.

    Returns
    -------
    dict
        ``clock`` and ``wall_offset_s`` (wall clock - run's clock), ``pid``, ``marks`` (whether
        the forward's parts have device times), ``algorithm``, ``overlap``, ``kv_tokens``
        (capacity), ``page_tokens``, ``max_running``, ``kv_bytes`` and ``draft_kv_bytes`` (pools;
        the draft's holds the same token slots as the target's, None without one),
        ``weights_bytes`` and ``draft_weights_bytes`` (tensors of this rank; those that the draft
        shares with the target count for the target only).
    """
    worker = scheduler.model_worker
    draft = getattr(getattr(worker, "draft_worker", None), "draft_runner", None)
    seen: set[int] = set()
    return {
        "clock": "monotonic",
        "wall_offset_s": time.time() - time.monotonic(),
        "pid": os.getpid(),
        "marks": "device" if device else "host",
        "algorithm": scheduler.spec_algorithm.name,
        "overlap": bool(scheduler.enable_overlap),
        "kv_tokens": int(scheduler.max_total_num_tokens),
        "page_tokens": int(scheduler.tree_cache.page_size),
        "max_running": int(scheduler.max_running_requests),
        "kv_bytes": _bytes(scheduler.tp_worker.model_runner.token_to_kv_pool),
        "draft_kv_bytes": None if draft is None else _bytes(draft.token_to_kv_pool),
        "weights_bytes": weights_bytes(scheduler.tp_worker.model_runner.model, seen),
        "draft_weights_bytes": None if draft is None else weights_bytes(draft.model, seen),
    }


def weights_bytes(model: Any, seen: set[int]) -> int | None:
    """Bytes of a model's parameters and buffers, without the storages in ``seen``, which grows.

    None when a kind of tensor has no storage to ask: no reason not to serve.
    """
    total = 0
    try:
        for tensor in (*model.parameters(), *model.buffers()):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    except (RuntimeError, NotImplementedError, AttributeError, ValueError):
        return None
    return total


def _bytes(pool: Any) -> int | None:
    sizes = getattr(pool, "get_kv_size_bytes", lambda: None)()
    return int(sum(sizes)) if isinstance(sizes, tuple) else sizes


def kv_facts(scheduler: Any) -> dict[str, int]:
    """Tokens of the KV pool: used by requests, evictable (cached only), free."""
    pool = scheduler.pool_stats_observer.get_pool_stats()
    return {
        "kv_used": pool.full_num_used,
        "kv_evictable": pool.full_evictable_size,
        "kv_free": pool.full_available_size,
    }


def batch_facts(scheduler: Any, batch: Any) -> dict[str, Any]:
    """A batch before its forward.

    Returns
    -------
    dict
        ``mode``, ``bs`` (requests in the forward), ``running`` (those, and those that wait for
        their next decode while others prefill), ``queued``, ``prefill_tokens`` (computed) and
        ``cached_tokens`` (taken from the prefix cache), and per request ``requests`` (id) and
        ``context`` (tokens before this iteration).
    """
    mode, reqs = batch.forward_mode, batch.reqs
    extend = mode.is_extend()
    others = scheduler.running_batch.reqs if scheduler.running_batch is not batch else ()
    running = len(reqs) + (len({id(r) for r in others} - {id(r) for r in reqs}) if others else 0)
    if extend:
        name = {"EXTEND": "prefill"}.get(mode.name, mode.name.lower())
    else:
        drafting = mode.is_decode() and not batch.spec_algorithm.is_none()
        name = "verify" if drafting else mode.name.lower()
    return {
        "mode": name,
        "bs": len(reqs),
        "running": running,
        "queued": len(scheduler.waiting_queue),
        "prefill_tokens": int(batch.extend_num_tokens or 0) if extend else 0,
        "cached_tokens": int(sum(batch.prefix_lens or ())) if extend else 0,
        "requests": [r.rid for r in reqs],
        "context": [len(r.origin_input_ids) + len(r.output_ids) for r in reqs],
        "source": [_source(batch.spec_algorithm)] * len(reqs) if name == "verify" else None,
    }


def _source(algorithm: Any) -> str:
    return "ngram" if algorithm.is_ngram() else "mtp"


def visible_tokens(reqs: list) -> list[int]:
    """Output tokens of each request that its client may see, the stop included."""
    return [len(r.output_ids) if r.finished_len is None else r.finished_len for r in reqs]


def result_facts(batch: Any, result: Any, before: list[int]) -> dict[str, Any]:
    """A batch after its results were processed.

    Returns
    -------
    dict
        ``width`` (tokens verified per request, 1 in a plain decode, None in a prefill),
        ``tokens`` (in the forward), and per request ``committed`` (tokens added to the output,
        nothing behind a stop; 0 for the server's own health checks) and ``accepted`` (drafts,
        also those behind a stop; None without drafting).
    """
    gained = [after - n for after, n in zip(visible_tokens(batch.reqs), before, strict=True)]
    committed = [
        0 if r.rid.startswith(_HEALTH) else n for r, n in zip(batch.reqs, gained, strict=True)
    ]
    accepted = getattr(result, "num_correct_drafts_per_req_cpu", None)
    width = getattr(result, "speculative_num_draft_tokens", None)
    if batch.forward_mode.is_extend():
        return {"width": None, "tokens": int(batch.extend_num_tokens or 0), "committed": committed}
    width = int(width or 1)
    return {
        "width": width,
        "tokens": width * len(batch.reqs),
        "committed": committed,
        "accepted": None if accepted is None else [int(n) for n in accepted],
    }

"""Record the iterations of this scheduler (``KVTOP_RECORD=file``), on a CPU as on a GPU.

One hook, where the event loop starts; from there single methods of this scheduler and of its
workers are wrapped, so that a server without a recorder runs SGLang's own methods. The methods of
the loop are those of every kind of event loop; workers are told apart by what they have.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from . import recorder
from .recorder_facts import batch_facts, header, kv_facts, result_facts, visible_tokens
from .recorder_marks import DeviceMarks
from .recorder_writer import Writer, close_on_sigterm

FILE = "KVTOP_RECORD"
log = logging.getLogger(__name__)


def register() -> None:
    """Hook the start of the event loop, and the one rare event that a batch alone knows of."""
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.run_event_loop", record, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode",
        count_retractions,
        HookType.AFTER,
    )


def count_retractions(result: tuple, batch: Any) -> None:
    """Requests that lost their KV and go back to the queue."""
    if (rec := recorder.active) is not None:
        rec.retracted += rec.safely(lambda: len(result[0])) or 0


def record(run_event_loop: Callable, scheduler: Any) -> None:
    """Run the event loop with a recorder; only the first rank of each data-parallel copy writes."""
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel()
    if ranks.attn_tp_rank or ranks.pp_rank or ranks.attn_cp_rank:
        return run_event_loop(scheduler)
    path = os.environ[FILE] + (f".dp{ranks.dp_rank}" if ranks.dp_rank else "")
    try:
        device = _device_marks(scheduler)
        writer = Writer(path, header(scheduler, device is not None))
    except Exception:
        log.warning("the recorder could not start; serving goes on without it", exc_info=True)
        return run_event_loop(scheduler)
    rec = recorder.active = recorder.Recorder(writer.put, fail=writer.fail, device=device)
    close_on_sigterm(rec, writer)
    rec.safely(attach, scheduler, rec)
    reason = "error"
    try:
        run_event_loop(scheduler)
        reason = "shutdown"
    finally:
        rec.close()
        with contextlib.suppress(OSError):
            writer.close(reason)


def _device_marks(scheduler: Any) -> DeviceMarks | None:
    if scheduler.device != "cuda":
        return None
    import torch

    return DeviceMarks(functools.partial(torch.cuda.Event, enable_timing=True))


def attach(scheduler: Any, rec: recorder.Recorder) -> None:
    """Wrap the methods of one scheduler and its workers."""
    _loop(scheduler, rec)
    worker, target = scheduler.model_worker, scheduler.tp_worker
    _wrap_target(target, rec)
    if worker is target:
        return
    _wrap(worker, "forward_batch_generation", _timed(rec, "worker"))
    _wrap(worker, "verify", _timed(rec, "verify"))
    draft = getattr(worker, "draft_worker", None)
    _wrap(draft, "draft", _timed(rec, "draft"))
    _wrap(draft, "_draft_extend_for_decode", _timed(rec, "draft_extend"))
    _wrap(draft, "_draft_extend_for_prefill", _timed(rec, "draft_extend"))
    if hasattr(worker, "ngram_corpus"):
        _wrap_ngram(worker, rec)


def _wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


def _timed(rec: recorder.Recorder, part: str) -> Callable[[Callable], Callable]:
    def make(original):
        def timed(*args, **kwargs):
            begun = rec.begin(part)
            try:
                return original(*args, **kwargs)
            finally:
                rec.end(begun)

        return timed

    return make


def _wrap_target(target: Any, rec: recorder.Recorder) -> None:
    """The target model's forward: part of a verification, or a prefill or decode of its own."""

    def make(original):
        plain = _timed(rec, "target")(original)

        def forward(*args, **kwargs):
            return (original if "verify" in rec.marks else plain)(*args, **kwargs)

        return forward

    _wrap(target, "forward_batch_generation", make)


def _wrap_ngram(worker: Any, rec: recorder.Recorder) -> None:
    """Look-up, then verification until the index takes what was accepted, then that."""
    verifying: list = []

    def look_up(original):
        def prepare(batch):
            begun = rec.begin("ngram")
            original(batch)
            rec.end(begun)
            if rec.safely(lambda: batch.forward_mode.is_target_verify()):
                verifying[:] = [rec.begin("verify")]

        return prepare

    def update(original):
        def put(batch):
            if verifying:
                rec.end(verifying.pop())
            begun = rec.begin("ngram")
            original(batch)
            rec.end(begun)

        return put

    _wrap(worker, "_prepare_for_speculative_decoding", look_up)
    _wrap(worker, "_update_ngram_corpus", update)


def _loop(scheduler: Any, rec: recorder.Recorder) -> None:
    """The stages of the event loop."""

    def ingest(original):
        def ingest_requests(*args, **kwargs):
            rec.safely(
                lambda: rec.pass_begins(
                    len(scheduler.waiting_queue), len(scheduler.running_batch.reqs)
                )
            )
            begun = rec.begin("receive")
            received = original(*args, **kwargs)
            rec.end(begun)
            return received

        return ingest_requests

    def run(original):
        def run_batch(batch, *args, **kwargs):
            begun = rec.begin("launch")
            rec.safely(
                lambda: rec.batch_begins(batch_facts(scheduler, batch) | kv_facts(scheduler))
            )
            result = original(batch, *args, **kwargs)
            rec.batch_launched(result, {})
            rec.end(begun)
            return result

        return run_batch

    def process(original):
        def process_batch_result(batch, result):
            begun = rec.begin("process")
            before = rec.safely(lambda: visible_tokens(batch.reqs))
            original(batch, result)
            rec.safely(lambda: rec.batch_processed(result, result_facts(batch, result, before)))
            rec.end(begun)

        return process_batch_result

    _wrap(scheduler, "ingest_requests", ingest)
    _wrap(scheduler, "get_next_batch_to_run", _timed(rec, "schedule"))
    _wrap(scheduler, "run_batch", run)
    _wrap(scheduler, "process_batch_result", process)

"""The hooks of the recorder around a scheduler in miniature: it serves whatever they run into."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from kvtop_lib.engine.iterations_stream import read_stream
from kvtop_lib.sglang_plugin import recorder

REGISTRY = "sglang.srt.plugins.hook_registry"


class Mode:
    """A decode."""

    name = "DECODE"

    def __init__(self, breaks):
        self._breaks = breaks

    def is_extend(self):
        if "facts" in self._breaks:
            raise AttributeError("is_extend")
        return False

    def is_decode(self):
        return True


class Request:
    """One that gets a token at every step."""

    rid, finished_len, origin_input_ids = "r", None, (1, 2)

    def __init__(self):
        self.output_ids = []


class Scheduler:
    """Three passes of a loop; ``breaks`` names what the recorder will not find."""

    device, enable_overlap, max_total_num_tokens, max_running_requests = "cpu", False, 9, 4

    def __init__(self, breaks=()):
        self.breaks, self.request = breaks, Request()
        self.spec_algorithm = SimpleNamespace(name="NONE", is_none=lambda: True)
        runner = SimpleNamespace(token_to_kv_pool=None, model=None)
        self.model_worker = self.tp_worker = SimpleNamespace(
            model_runner=runner, forward_batch_generation=lambda batch: "forward"
        )
        self.tree_cache = SimpleNamespace(**({} if "header" in breaks else {"page_size": 1}))
        pool = SimpleNamespace(full_num_used=3, full_evictable_size=0, full_available_size=6)
        self.pool_stats_observer = SimpleNamespace(get_pool_stats=lambda: pool)
        self.waiting_queue, self.running_batch = [], SimpleNamespace(reqs=[])
        if "queue" in breaks:
            del self.waiting_queue

    def ingest_requests(self):
        return "received"

    def get_next_batch_to_run(self):
        batch = SimpleNamespace(
            forward_mode=Mode(self.breaks), reqs=[self.request], spec_algorithm=self.spec_algorithm
        )
        return batch

    def run_batch(self, batch):
        self.tp_worker.forward_batch_generation(batch)
        return SimpleNamespace()

    def process_batch_result(self, batch, result):
        for request in batch.reqs:
            request.output_ids.append(7)
        if "result" in self.breaks:
            del batch.reqs

    def loop(self):
        for _ in range(3):
            assert self.ingest_requests() == "received"
            batch = self.get_next_batch_to_run()
            self.process_batch_result(batch, self.run_batch(batch))


@pytest.fixture
def record(monkeypatch, tmp_path):
    """`hooks_recorder.record` as SGLang's registry calls it, into the file ``s``."""
    registry, context = ModuleType(REGISTRY), ModuleType("sglang.srt.runtime_context")
    registry.HookRegistry, registry.HookType = SimpleNamespace(), SimpleNamespace()
    context.get_parallel = lambda: SimpleNamespace(
        attn_tp_rank=0, pp_rank=0, attn_cp_rank=0, dp_rank=0
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, REGISTRY, registry)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    name = "kvtop_lib.sglang_plugin.hooks_recorder"
    monkeypatch.delitem(sys.modules, name, raising=False)
    hooks_recorder = importlib.import_module(name)
    monkeypatch.setattr(hooks_recorder, "close_on_sigterm", lambda *given: None)
    monkeypatch.setattr(recorder, "active", None)
    monkeypatch.setenv(hooks_recorder.FILE, str(tmp_path / "s"))
    yield hooks_recorder.record
    sys.modules.pop(name, None)  # it knows the registry above


def test_every_pass_is_recorded(record, tmp_path):
    scheduler = Scheduler()
    record(Scheduler.loop, scheduler)
    stream = read_stream(tmp_path / "s")
    assert stream.ended == "shutdown" and stream.header["kv_tokens"] == 9
    assert [r["mode"] for r in stream.records] == ["decode"] * 3
    assert [r["committed"] for r in stream.records] == [[1]] * 3
    assert [r["context"] for r in stream.records] == [[2], [3], [4]]
    assert scheduler.request.output_ids == [7] * 3


@pytest.mark.parametrize("missing", ["queue", "facts", "result"])
def test_a_recorder_that_fails_stops_recording_and_not_the_server(record, tmp_path, missing):
    scheduler = Scheduler({missing})
    record(Scheduler.loop, scheduler)
    assert scheduler.request.output_ids == [7] * 3
    stream = read_stream(tmp_path / "s")
    assert stream.ended.startswith("failed: AttributeError: ") and stream.records == []


def test_a_recorder_that_cannot_start_leaves_the_server_without_one(record, tmp_path):
    scheduler = Scheduler({"header"})
    record(Scheduler.loop, scheduler)
    assert scheduler.request.output_ids == [7] * 3 and recorder.active is None
    assert not (tmp_path / "s").exists()


def test_an_error_of_the_server_itself_is_not_hidden(record, tmp_path):
    def loop(scheduler):
        Scheduler.loop(scheduler)
        raise RuntimeError("the server's own")

    with pytest.raises(RuntimeError, match="the server's own"):
        record(loop, Scheduler())
    stream = read_stream(tmp_path / "s")
    assert stream.ended == "error" and len(stream.records) == 3

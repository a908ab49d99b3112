"""The draft worker's own ways are taken: heads at a prefill, our pass after a verification."""

import subprocess
import sys
from types import SimpleNamespace

from kvtop_lib.sglang_plugin.drafts import worker as module


def test_a_prefill_brings_the_first_drafts_of_its_requests(monkeypatch):
    forgotten, ran, said = [], [], []
    worker = object.__new__(module.HybridWorker)
    worker.director = SimpleNamespace(interrupted=lambda: said.append("interrupted"))
    worker._heads = SimpleNamespace(forget=forgotten.append)
    worker._draft_worker = SimpleNamespace(kvtop_plan="of the iteration before")
    run = "forward_batch_generation"
    monkeypatch.setattr(module.EAGLEWorkerV2, run, lambda self, batch: ran.append(batch))

    def prefill(requests, idle=False):
        mode = SimpleNamespace(is_extend=lambda: not idle, is_idle=lambda: idle)
        return SimpleNamespace(reqs=requests, forward_mode=mode, is_extend_in_batch=False)

    batches = prefill(["a", "b"]), prefill(None, idle=True)  # a rank that has nothing to do
    for batch in batches:
        worker.forward_batch_generation(batch)
    assert forgotten == [["a", "b"], ()] and ran == list(batches)
    assert worker._draft_worker.kvtop_plan is None and said == ["interrupted"] * 2


HOOKED = """
import sglang.srt.plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from kvtop_lib.sglang_plugin import draft_extend, hooks_draft

sglang.srt.plugins._plugins_loaded = True
hooks_draft.register()
HookRegistry.apply_hooks()
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

draft_extend.extend = lambda original, worker, batch, result, **more: (original.__name__, batch)
print("got", EagleDraftWorker._draft_extend_for_decode(None, 1, 2, kv_loc_plan=3))
"""


def test_sglang_calls_our_pass_after_a_verification():
    """A hook whose place SGLang has renamed would leave its slower pass, unseen."""
    done = subprocess.run([sys.executable, "-c", HOOKED], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "got ('_draft_extend_for_decode', 1)" in done.stdout

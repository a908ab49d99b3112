"""Give SGLang's draft worker the runners that stand where a GPU has captured graphs."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Hook the place where the draft worker captures its graphs (and does nothing on a CPU)."""
    HookRegistry.register(
        "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._capture_cuda_graphs",
        add_runners,
        HookType.AFTER,
    )


def add_runners(result, worker) -> None:
    """Fill the two empty slots; called again for each width of an adaptive configuration."""
    from .draft_runners import CpuDraftExtendRunner, CpuDraftRunner

    worker.cuda_graph_runner = CpuDraftRunner(worker)
    worker.cuda_graph_runner_for_draft_extend = CpuDraftExtendRunner(worker)

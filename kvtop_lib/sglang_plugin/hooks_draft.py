"""A CPU's own ways through SGLang's draft worker: runners in place of captured graphs, a pass
after the verification that runs the accepted rows only."""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    """Hook where the draft worker captures graphs (nothing on a CPU), and its pass afterwards."""
    worker = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
    HookRegistry.register(f"{worker}._capture_cuda_graphs", add_runners, HookType.AFTER)
    HookRegistry.register(f"{worker}._draft_extend_for_decode", extend, HookType.AROUND)


def add_runners(result, worker) -> None:
    """Fill the two empty slots; called again for each width of an adaptive configuration."""
    from .draft_runners import CpuDraftExtendRunner, CpuDraftRunner

    worker.cuda_graph_runner = CpuDraftRunner(worker)
    worker.cuda_graph_runner_for_draft_extend = CpuDraftExtendRunner(worker)


def extend(original, worker, batch, result, **kwargs) -> None:
    """`draft_extend.extend`, imported only where a worker drafts."""
    from .draft_extend import extend as accepted_rows

    return accepted_rows(original, worker, batch, result, **kwargs)

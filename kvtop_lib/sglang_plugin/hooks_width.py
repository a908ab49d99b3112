"""Drafts of `KVTOP_DRAFT`: MTP with n-grams, widths by a policy. On any device.

Without the variable nothing is hooked. SGLang's adaptive speculation must be on: it prepares a
state per width (``--speculative-adaptive``, with ``--speculative-num-steps`` one below the
largest width). Its configuration file is not needed, the widths come from the variable.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .drafts.config import from_environment
from .plugin import runs_models

SPECULATIVE = "sglang.srt.speculative"


def register() -> None:
    """Hook the candidates in every process, and the worker where models run."""
    from_environment()  # a wrong value ends the server before anything is loaded
    HookRegistry.register(
        f"{SPECULATIVE}.adaptive_spec_params._load_adaptive_config", candidates, HookType.AROUND
    )
    if runs_models():
        HookRegistry.register(
            f"{SPECULATIVE}.spec_info.SpeculativeAlgorithm.create_worker", worker_class
        )
        HookRegistry.register(
            f"{SPECULATIVE}.eagle_worker_v2.EagleDraftWorker.draft", draft, HookType.AROUND
        )


def candidates(original, cfg_path=None):
    """SGLang's adaptive configuration from the variable; a file that is named wins."""
    config = from_environment()
    if cfg_path is not None or config is None:
        return original(cfg_path)
    data = config.adaptive_config()
    return data, {int(batch): entry for batch, entry in data.items()}


def worker_class(result, algorithm, server_args):
    """Our subclass in place of SGLang's EAGLE worker, unless its own rule is wanted."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    config = from_environment()
    if config is None or config.policy == "sglang":
        return result
    if result is not EAGLEWorkerV2:
        raise RuntimeError(
            f"KVTOP_DRAFT needs an MTP or EAGLE draft (--speculative-algorithm NEXTN or EAGLE), "
            f"this server drafts with {algorithm.name}"
        )
    from .drafts.worker import HybridWorker

    return HybridWorker


def draft(original, worker, batch, **kwargs):
    """`drafts.worker.draft`, imported only where a worker drafts by a plan."""
    if worker.__dict__.get("kvtop_plan") is None:
        return original(worker, batch, **kwargs)
    from .drafts.worker import draft as planned

    return planned(original, worker, batch, **kwargs)

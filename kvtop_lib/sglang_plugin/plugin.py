"""Entry point of the SGLang plug-in (group ``sglang.srt.plugins``, name ``kvtop``).

SGLang calls `register` once in every process of a server, before the engine starts. Nothing of
SGLang is changed on disk, and without ``KVTOP_SGLANG=1`` nothing is changed at all.
"""

import importlib
import multiprocessing
import os
import sys

ENABLE = "KVTOP_SGLANG"
RECORD = "KVTOP_RECORD"  # file for the scheduler's iterations, on a CPU as on a GPU
DRAFT = "KVTOP_DRAFT"  # JSON: sources, widths and policy of drafts, on a CPU as on a GPU
# every process: server arguments are resolved in the first
PLATFORM_HOOKS = ("hooks_platform", "hooks_start")
MODEL_HOOKS = (
    "hooks_linear",
    "hooks_rows",
    "hooks_attention",
    "hooks_moe",
    "hooks_llama",
    "hooks_draft",
)


def register() -> None:
    """Register the hooks that this process needs; none unless ``KVTOP_SGLANG=1``.

    The CPU part stays out when a GPU serves: SGLang's own kernels are used there.
    """
    if os.environ.get(ENABLE) != "1":
        return
    if os.environ.get(RECORD) and runs_models():
        importlib.import_module(f"{__package__}.hooks_recorder").register()
    if os.environ.get(DRAFT):
        importlib.import_module(f"{__package__}.hooks_width").register()
    if serves_on_cpu():
        for name in PLATFORM_HOOKS + (MODEL_HOOKS if runs_models() else ()):
            importlib.import_module(f"{__package__}.{name}").register()


def serves_on_cpu() -> bool:
    """Whether SGLang was told to serve on the CPU and sees no GPU that it would rather use."""
    from sglang.srt.utils import is_cpu, is_cuda, is_hip

    return is_cpu() and not (is_cuda() or is_hip())


def runs_models() -> bool:
    """Whether this is a scheduler process: hooking model code in the others costs seconds."""
    if multiprocessing.parent_process() is None:
        return False
    target = getattr(multiprocessing.current_process(), "_target", None)
    if "detokenizer" in getattr(target, "__name__", ""):  # forked, it has the scheduler's modules
        return False
    return "sglang.srt.managers.scheduler" in sys.modules

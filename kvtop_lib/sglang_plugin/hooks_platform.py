"""What SGLang takes for granted on a CPU and this machine lacks: AMX, and a CUDA runtime."""

import os
import sys

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

CPU_BACKEND = "intel_amx"  # the one CPU attention back end of SGLang that can draft


def register() -> None:
    """Keep the drafting attention back end without AMX; make CUDA synchronisation harmless."""
    _disable_dynamo()
    HookRegistry.register(
        "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks",
        keep_cpu_backend,
        HookType.AROUND,
    )
    if not torch.cuda.is_available():
        # glm4_moe.set_embed_and_head calls it whatever the device.
        HookRegistry.register("torch.cuda.synchronize", no_synchronize, HookType.REPLACE)


def keep_cpu_backend(original, view):
    """Do not fall back to ``torch_native``, which cannot draft: our kernels need no AMX."""
    if view.attention_backend == CPU_BACKEND and view.device == "cpu":
        return {}
    return original(view)


def no_synchronize(device=None) -> None:
    """Nothing runs asynchronously on a CPU."""


def _disable_dynamo() -> None:
    """No ``torch.compile``: it costs half a minute at the first request and gains nothing here."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # read when torch._dynamo is first imported
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].config.disable = True

"""SGLang's ``intel_amx`` back end with our attention: one routine for every kind of forward.

The name stays, because it is the only CPU back end that SGLang lets draft; the class behind it
is ours, from the registry and from the draft back-end factory alike.
"""

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

MODULE = "sglang.srt.layers.attention.intel_amx_backend"


def register() -> None:
    """Replace the two classes of the back end (imported here: only model processes need them)."""
    from .attention_backend import CpuAttnBackend, CpuMultiStepDraftBackend

    HookRegistry.register(f"{MODULE}.IntelAMXAttnBackend", CpuAttnBackend, HookType.REPLACE)
    HookRegistry.register(
        f"{MODULE}.IntelAMXMultiStepDraftBackend", CpuMultiStepDraftBackend, HookType.REPLACE
    )

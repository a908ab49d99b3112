"""The experts of a mixture-of-experts layer by the packed linear kernel."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from . import kernels
from .experts import run_experts
from .packed import packed

_ATTRIBUTE = "_kvtop_experts"


def register() -> None:
    """Hook the path of the unquantised experts that a CPU without AMX takes."""
    HookRegistry.register(
        "sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod.forward_native",
        experts,
        HookType.AROUND,
    )


def experts(original, method, layer, dispatch_output):
    """The routed experts of a layer by `run_experts`; what it cannot take stays SGLang's."""
    config = method.moe_runner_config
    plain = config.activation == "silu" and config.gemm1_alpha is None
    plain = plain and not config.apply_router_weight_on_input
    biased = getattr(layer, "w13_weight_bias", None) is not None
    if not plain or biased or layer.w13_weight.dtype != torch.float32:
        return original(method, layer, dispatch_output)
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    x = dispatch_output.hidden_states
    weights, ids, _ = dispatch_output.topk_output
    return StandardCombineInput(hidden_states=run_experts(_packed_experts(layer), x, weights, ids))


def _packed_experts(layer) -> list[tuple[kernels.Packed, kernels.Packed]]:
    if not hasattr(layer, _ATTRIBUTE):
        pairs = zip(layer.w13_weight, layer.w2_weight, strict=True)
        setattr(layer, _ATTRIBUTE, [(packed(up.data), packed(down.data)) for up, down in pairs])
    return getattr(layer, _ATTRIBUTE)

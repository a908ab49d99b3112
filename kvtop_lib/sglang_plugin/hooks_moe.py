"""The experts of a mixture-of-experts layer by the packed linear kernel."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from . import kernels
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
    """Each expert once, on the tokens routed to it, added in the order of experts.

    That order depends on the token alone, so its sum has the same bits in any batch.
    """
    config = method.moe_runner_config
    plain = config.activation == "silu" and config.gemm1_alpha is None
    plain = plain and not config.apply_router_weight_on_input
    biased = getattr(layer, "w13_weight_bias", None) is not None
    if not plain or biased or layer.w13_weight.dtype != torch.float32:
        return original(method, layer, dispatch_output)
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    x = dispatch_output.hidden_states
    weights, ids, _ = dispatch_output.topk_output
    return StandardCombineInput(hidden_states=_run(_packed_experts(layer), x, weights, ids))


def _run(experts_, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """x [tokens, hidden], weights and ids [tokens, topk] -> [tokens, hidden]."""
    out = torch.zeros_like(x)
    order = ids.flatten().argsort(stable=True)
    tokens, scale = order // ids.shape[1], weights.flatten()[order, None]
    start = 0
    for expert, count in enumerate(torch.bincount(ids.flatten(), minlength=len(experts_)).tolist()):
        if count:
            mine = slice(start, start + count)
            up, down = experts_[expert]
            acted = kernels.silu_and_mul(kernels.linear(x[tokens[mine]], up))
            out.index_add_(0, tokens[mine], kernels.linear(acted, down) * scale[mine])
            start += count
    return out


def _packed_experts(layer) -> list[tuple[kernels.Packed, kernels.Packed]]:
    if not hasattr(layer, _ATTRIBUTE):
        pairs = zip(layer.w13_weight, layer.w2_weight, strict=True)
        setattr(layer, _ATTRIBUTE, [(packed(up.data), packed(down.data)) for up, down in pairs])
    return getattr(layer, _ATTRIBUTE)

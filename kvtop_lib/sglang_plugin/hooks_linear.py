"""Every matrix product of a model goes through the packed linear kernel.

Linear layers, the LM head (the draft's reduced one too), the plain ``nn.Linear`` projections of
the draft models and the router of a MoE: one kernel, so that a token gets the same bits in
decode, verify and prefill.
"""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .packed import linear


def register() -> None:
    """Hook the four places where SGLang multiplies by a weight matrix."""
    for target, hook in (
        ("sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", layer_apply),
        ("sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", lm_head),
        ("torch.nn.Linear.forward", plain_linear),
        ("sglang.srt.models.glm4_moe.Glm4MoeGate.forward", router),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def layer_apply(original, method, layer, x, bias=None):
    """SGLang's linear layers: qkv, o, gate_up, down and their like."""
    if layer.weight.dtype != torch.float32:
        return original(method, layer, x, bias)
    return linear(x, layer.weight, bias)


def lm_head(original, processor, hidden_states, head, embedding_bias=None, *, out=None):
    """Logits; ``out`` is a preallocated buffer of graph runners, of which a CPU has none."""
    weight = getattr(head, "weight", None)
    plain = weight is not None and weight.dtype == torch.float32 and out is None
    if not plain or hasattr(head, "set_lora"):
        return original(processor, hidden_states, head, embedding_bias, out=out)
    return linear(hidden_states, weight, embedding_bias)


def plain_linear(original, module, x):
    """``nn.Linear`` of the drafts (``fc``, ``eh_proj``)."""
    if module.weight.dtype != torch.float32 or x.dtype != torch.float32:
        return original(module, x)
    return linear(x, module.weight, module.bias)


def router(original, gate, hidden_states):
    """Expert scores of a MoE block."""
    return linear(hidden_states.float(), gate.weight, None)

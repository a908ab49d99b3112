"""SGLang's Llama models as one prepared `kernels.LlamaStack`."""

import logging

import torch

from . import kernels
from .packed import packed

log = logging.getLogger(__name__)
_ATTRIBUTE = "_kvtop_stack"
LAYER_MODULES = ("sglang.srt.models.llama", "sglang.srt.models.llama_eagle")


def stack_of(model, pool=None) -> kernels.LlamaStack | None:
    """The prepared stack of a model; None when SGLang's own layers must run it.

    ``pool`` is the model's KV pool, by default that of the forward that runs now.
    """
    if pool is None:
        from sglang.srt.model_executor.forward_context import get_token_to_kv_pool

        pool = get_token_to_kv_pool()
    known = getattr(model, _ATTRIBUTE, None)
    if known is None or known[0] is not pool:
        known = (pool, _build(model, pool))
        setattr(model, _ATTRIBUTE, known)
    return known[1]


def _build(model, pool) -> kernels.LlamaStack | None:
    layers = list(model.layers)
    reason = next((r for r in map(_obstacle, layers) if r), None)
    if reason:
        log.warning("Llama layers run one by one, not as one kernel: %s", reason)
        return None
    first = layers[0].self_attn
    norm = getattr(model, "norm", None)
    stack = kernels.LlamaStack(
        [_layer(layer, pool) for layer in layers],
        None if norm is None else norm.weight.data,
        first.rotary_emb.cos_sin_cache,
        first.num_heads,
        first.head_dim,
        layers[0].post_attention_layernorm.variance_epsilon,
        first.scaling,
    )
    log.info("%d Llama layers run as one kernel", len(layers))
    return stack


def _obstacle(layer) -> str | None:
    """Why a decoder layer cannot be part of a stack, None when it can."""
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.linear import LinearBase

    if type(layer).__module__ not in LAYER_MODULES:
        return f"{type(layer).__module__} has a layer of its own"
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    if not all(isinstance(p, LinearBase) and p.weight.dtype == torch.float32 for p in projections):
        return "a projection is quantised, adapted or not float32"
    if not isinstance(mlp.act_fn, SiluAndMul):
        return "the activation is not SiLU-and-multiply"
    rope = attention.rotary_emb
    if not rope.is_neox_style or rope.cos_sin_cache.dtype != torch.float32:
        return "the rotation is not neox style in float32"
    if attention.attn.sliding_window_size > 0 or attention.attn.logit_cap > 0:
        return "a sliding window or a logit cap"
    return None


def _layer(layer, pool) -> kernels.LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    parts = {
        "qkv": attention.qkv_proj,
        "o": attention.o_proj,
        "gate_up": mlp.gate_up_proj,
        "down": mlp.down_proj,
    }
    input_norm = getattr(layer, "input_layernorm", None)
    return kernels.LlamaLayer(
        input_norm=None if input_norm is None else input_norm.weight.data,
        post_norm=layer.post_attention_layernorm.weight.data,
        k_pool=pool.get_key_buffer(attention.attn.layer_id),
        v_pool=pool.get_value_buffer(attention.attn.layer_id),
        biases={name: p.bias.data for name, p in parts.items() if p.bias is not None},
        **{name: packed(p.weight) for name, p in parts.items()},
    )

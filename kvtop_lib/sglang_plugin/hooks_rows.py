"""Row-wise operations by the kernels: RMSNorm, rotary embedding, SiLU-and-multiply."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from . import kernels


def register() -> None:
    """Hook what SGLang runs on a CPU without AMX: the native methods of three layer classes."""
    for target, hook in (
        ("sglang.srt.layers.layernorm.RMSNorm.forward_native", rms_norm),
        ("sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native", rotary),
        ("sglang.srt.layers.activation.SiluAndMul.forward_native", silu_and_mul),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def rms_norm(original, norm, x, residual=None, post_residual_addition=None, quant_linear=None):
    """RMSNorm; with a residual, ``x`` and ``residual`` are overwritten as SGLang's kernels do."""
    plain = norm.variance_size_override is None and post_residual_addition is None
    if not plain or x.dtype != torch.float32 or norm.weight.dtype != torch.float32:
        return original(norm, x, residual, post_residual_addition, quant_linear)
    x = x if x.stride(-1) == 1 and x.dim() == 2 else x.contiguous()
    if residual is None:
        return kernels.rms_norm(x, norm.weight, norm.variance_epsilon)
    kernels.fused_add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
    return x, residual


def rotary(original, rope, positions, query, key, offsets=None, fused_set_kv_buffer_arg=None):
    """Neox rotation of queries and keys [tokens, heads * head_size], in place."""
    cache = rope.cos_sin_cache
    flat = query.dim() == key.dim() == 2 and query.stride(1) == key.stride(1) == 1
    plain = rope.is_neox_style and offsets is None and fused_set_kv_buffer_arg is None
    if not (flat and plain) or query.dtype != torch.float32 or cache.dtype != torch.float32:
        return original(rope, positions, query, key, offsets, fused_set_kv_buffer_arg)
    kernels.rope_(positions, query, key, rope.head_size, cache)
    return query, key


def silu_and_mul(original, act, x):
    """``silu(first half) * second half``."""
    if x.dtype != torch.float32 or not x.is_contiguous():
        return original(act, x)
    return kernels.silu_and_mul(x)

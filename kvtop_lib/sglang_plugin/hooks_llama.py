"""A whole Llama stack in one kernel call, for the trunk and for the EAGLE draft layer alike.

The same call serves prefill, decode, verify and draft-extend. What it cannot take (another
activation, scaled or partial rotation in pairs, a sliding window, LoRA) runs through SGLang's
layers, which end in the same kernels one by one.
"""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .llama import stack_of


def register() -> None:
    """Hook both Llama models."""
    for target, hook in (
        ("sglang.srt.models.llama.LlamaModel.forward", trunk_forward),
        ("sglang.srt.models.llama_eagle.LlamaModel.forward", draft_forward),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def trunk_forward(
    original, model, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None
):
    """Embeddings to final-normed hidden states."""
    stack = None if model.layers_to_capture or pp_proxy_tensors is not None else stack_of(model)
    if stack is None:
        return original(model, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
    x = model.embed_tokens(input_ids) if input_embeds is None else input_embeds.clone()
    return _run(stack, x, positions, forward_batch)


def draft_forward(
    original, model, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None
):
    """The draft's one layer on ``fc(embedding, trunk state)``; no final norm."""
    stack = stack_of(model)
    if stack is None:
        return original(model, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
    x = model.embed_tokens(input_ids) if input_embeds is None else input_embeds
    x = model.fc(torch.cat((x, forward_batch.spec_info.hidden_states), dim=-1))
    return _run(stack, x, positions, forward_batch)


def _run(stack, x, positions, forward_batch):
    from sglang.srt.model_executor.forward_context import get_attn_backend

    slots = forward_batch.out_cache_loc.contiguous()
    return stack.forward(x, positions, slots, get_attn_backend().batch)

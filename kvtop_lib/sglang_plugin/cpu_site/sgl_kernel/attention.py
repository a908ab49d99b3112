"""The two attention ops of SGLang's ``intel_amx`` back end, over one routine.

Decode, extend and verify differ only in which KV rows a query token may see, so all of them
call `attend`: no path can be better optimised than another.
"""

import torch

NO_LIMIT = 0.0


def attend(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slots: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    logit_cap: float = NO_LIMIT,
) -> torch.Tensor:
    """Attention of one request's query tokens over its KV slots.

    Parameters
    ----------
    q : [tokens, heads, head_dim]
    k_buffer, v_buffer : [pool, kv_heads, head_dim]
    slots : [length] rows of the buffers, in order of position
    visible : [tokens, length] bool or None (all visible)

    Returns
    -------
    [tokens, heads, v_head_dim]
    """
    k, v = k_buffer[slots], v_buffer[slots]
    tokens, heads, _ = q.shape
    grouped = q.view(tokens, k.shape[1], heads // k.shape[1], -1)
    scores = torch.einsum("tkgd,lkd->tkgl", grouped.float(), k.float()) * scale
    if logit_cap > NO_LIMIT:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
    out = torch.einsum("tkgl,lkd->tkgd", scores.softmax(-1), v.float())
    return out.reshape(tokens, heads, -1).to(q.dtype)


def causal_visibility(length: int, tokens: int, window: int) -> torch.Tensor:
    """[tokens, length] bool: the last ``tokens`` positions each see what is not after them.

    ``window`` > 0 keeps the last ``window`` positions only.
    """
    own = torch.arange(length - tokens, length)[:, None]
    position = torch.arange(length)
    visible = position <= own
    return visible & (position > own - window) if window > 0 else visible


def decode_attention_cpu(
    query: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window: int = 0,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """One query token per request; its key and value are stored first.

    Parameters
    ----------
    query : [bs, heads, head_dim]; output : [bs, heads, v_head_dim], changed in place
    k_buffer, v_buffer : [pool, kv_heads, head_dim], rows ``loc`` changed in place
    key, value : [bs, kv_heads, head_dim] or None (already stored)
    attn_logits : SGLang's scratch space, unused
    req_to_token : [requests, pool_len]; req_pool_indices, seq_lens : [bs], own token included
    sliding_window : tokens that remain visible, 0 for all
    """
    _refuse_unsupported(k_scale, v_scale, is_cross_attn, sinks)
    if key is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:])
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:])
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (row, length) in enumerate(rows):
        first = max(0, length - sliding_window) if sliding_window > 0 else 0
        slots = req_to_token[row, first:length]
        output[i : i + 1] = attend(
            query[i : i + 1], k_buffer, v_buffer, slots, None, sm_scale, logit_cap
        )


def extend_attention_cpu(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window: int = 0,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Several query tokens per request: prefill (also after a cached prefix) and verify.

    SGLang has stored their keys and values in the buffers before the call.

    Parameters
    ----------
    query : [sum(extend_seq_lens), heads, head_dim]; output alike, changed in place
    req_to_token : [requests, pool_len]; req_pool_indices : [bs]
    seq_lens : [bs] committed and new tokens; extend_seq_lens, extend_start_loc : [bs] new ones
    tree_mask : flat bool [bs, n, n] or None
        Among the new tokens, who sees whom (n of each request); without it they are a chain.
    """
    _refuse_unsupported(k_scale, v_scale, is_cross_attn, sinks)
    bounds = (req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc)
    seen = 0
    for row, length, tokens, start in zip(*(b.tolist() for b in bounds), strict=True):
        if tokens == 0:
            continue
        visible = causal_visibility(length, tokens, sliding_window) if is_causal else None
        if tree_mask is not None:
            own = tree_mask[seen : seen + tokens * tokens].view(tokens, tokens)
            visible[:, length - tokens :] = own
            seen += tokens * tokens
        output[start : start + tokens] = attend(
            query[start : start + tokens],
            k_buffer,
            v_buffer,
            req_to_token[row, :length],
            visible,
            sm_scale,
            logit_cap,
        )


def _refuse_unsupported(k_scale, v_scale, is_cross_attn, sinks) -> None:
    if k_scale != 1.0 or v_scale != 1.0 or is_cross_attn or sinks is not None:
        raise NotImplementedError(
            "the CPU stand-in of sgl_kernel serves plain self-attention with unscaled KV only"
        )


def _register() -> torch.library.Library:
    """Define the ops under the names and with the argument order of SGLang's call sites."""
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define(
        "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, "
        "float k_scale, float v_scale, Tensor(c!) output, Tensor? key, Tensor? value, "
        "Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, "
        "Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn=False, "
        "int sliding_window=0, Tensor? encoder_lens=None, Tensor? sinks=None) -> ()"
    )
    library.define(
        "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, "
        "Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, "
        "Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
        "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
        "bool is_cross_attn=False, int sliding_window=0, Tensor? encoder_lens=None, "
        "Tensor? sinks=None, Tensor? tree_mask=None, bool is_causal=True) -> ()"
    )
    library.impl("decode_attention_cpu", decode_attention_cpu, "CPU")
    library.impl("extend_attention_cpu", extend_attention_cpu, "CPU")
    return library


_LIBRARY = _register()  # the registration lasts as long as this object

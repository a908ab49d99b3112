"""Attention in plain torch, for machines without a C compiler: right, but slower."""

import torch


def _visible(batch, i: int, seq: int, extend: int, start: int) -> torch.Tensor:
    """bool [extend, seq]: which keys the new tokens of request i see."""
    if batch.mask is not None:
        return batch.mask[start : start + extend * seq].view(extend, seq).bool()
    keys = torch.arange(seq)
    own = torch.arange(seq - extend, seq).unsqueeze(1)
    seen = keys <= own if batch.causal else torch.ones(extend, seq, dtype=torch.bool)
    return seen & (keys > own - batch.window) if batch.window > 0 else seen


def attention(q, k_pool, v_pool, batch, scale, logit_cap, out) -> torch.Tensor:
    """The contract of `attention.attention`, one request at a time."""
    group = q.shape[1] // k_pool.shape[1]
    extends = [1] * batch.size if batch.extend_lens is None else batch.extend_lens.tolist()
    row = mask = 0
    for i, (seq, extend) in enumerate(zip(batch.seq_lens.tolist(), extends, strict=True)):
        slots = batch.req_to_token[batch.req_pool_indices[i], :seq].long()
        keys = k_pool[slots].repeat_interleave(group, dim=1)
        values = v_pool[slots].repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,khd->htk", q[row : row + extend], keys) * scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        seen = _visible(batch, i, seq, extend, mask)
        weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
        out[row : row + extend] = torch.einsum("htk,khd->thd", weights.nan_to_num(0.0), values)
        row += extend
        mask += extend * seq
    return out

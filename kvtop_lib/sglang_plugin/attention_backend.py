"""Attention back end on the paged-attention kernel."""

import dataclasses

import torch
from sglang.srt.layers.attention.intel_amx_backend import (
    IntelAMXAttnBackend,
    IntelAMXMultiStepDraftBackend,
)
from sglang.srt.layers.radix_attention import AttentionType

from . import kernels
from .visibility import visible_keys


class CpuAttnBackend(IntelAMXAttnBackend):
    """Decode, extend, verify and draft-extend by the same call, for plain self-attention.

    Attributes
    ----------
    batch
        `kernels.Batch` of the forward that runs now; fused model forwards read it too.
    """

    batch: kernels.Batch | None = None

    def init_forward_metadata(self, forward_batch) -> None:
        """Describe the batch once per forward."""
        table, rows = self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices
        if forward_batch.forward_mode.is_decode_or_idle():
            self.batch = kernels.Batch(table, rows, forward_batch.seq_lens)
            return
        seq_lens, extend_lens, _, tree_mask = self._build_extend_metadata(forward_batch)
        mask = None
        if tree_mask is not None:
            mask = visible_keys(tree_mask, seq_lens, forward_batch.spec_info.draft_token_num)
        self.batch = kernels.Batch(table, rows, seq_lens, extend_lens, mask)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        """One new token per request."""
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, sinks)

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None):
        """Several new tokens per request."""
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache, sinks)

    def _attend(self, q, k, v, layer, forward_batch, save_kv_cache, sinks):
        batch = self._batch_for(layer, sinks)
        k_pool = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        v_pool = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        if save_kv_cache and k is not None:
            slots = forward_batch.out_cache_loc
            kernels.store_kv(k.flatten(1), v.flatten(1), k_pool, v_pool, slots)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = kernels.attention(query, k_pool, v_pool, batch, layer.scaling, layer.logit_cap)
        return out.flatten(1)

    def _batch_for(self, layer, sinks) -> kernels.Batch:
        causal = layer.attn_type != AttentionType.ENCODER_ONLY
        scaled = (layer.k_scale_float or 1.0) != 1.0 or (layer.v_scale_float or 1.0) != 1.0
        if layer.is_cross_attention or sinks is not None or scaled:
            raise NotImplementedError(
                "KVTop's CPU attention serves plain self-attention with unscaled KV only"
            )
        window = layer.sliding_window_size + 1
        if causal and window <= 0:
            return self.batch
        return dataclasses.replace(self.batch, causal=causal, window=max(window, 0))


class CpuMultiStepDraftBackend(IntelAMXMultiStepDraftBackend):
    """One `CpuAttnBackend` per further draft step; step ``s`` sees ``s + 1`` draft tokens."""

    def init_forward_metadata(self, forward_batch) -> None:
        """Describe all draft steps of an iteration."""
        table = self.attn_backends[0].req_to_token_pool.req_to_token
        rows, seq_lens = forward_batch.req_pool_indices, forward_batch.seq_lens
        if self.topk > 1:
            table = self.build_draft_decode_metadata(
                table, rows, seq_lens, self.topk, self.speculative_num_steps, self.pool_len
            )
            rows = torch.arange(rows.numel() * self.topk)
            seq_lens = seq_lens.repeat_interleave(self.topk)
        for step, backend in enumerate(self.attn_backends):
            backend.batch = kernels.Batch(table, rows, seq_lens + step + 1)

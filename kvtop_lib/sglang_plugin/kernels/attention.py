"""Attention over a paged KV pool: decode is extend by one token, in the same routine."""

import ctypes
import dataclasses

import torch

from . import fallback
from .lib import CAttention, native


@dataclasses.dataclass(frozen=True)
class Batch:
    """Who attends to what, the same for every layer of a forward.

    Attributes
    ----------
    req_to_token
        int32 [requests, positions]: KV slot of each position; rows may be longer than used.
    req_pool_indices
        int64 [B]: each request's row of `req_to_token`.
    seq_lens
        int64 [B]: keys of each request, the new tokens included.
    extend_lens
        int64 [B]: new tokens of each request, the last ones of its keys; None means one each.
    mask
        bool or uint8, per request [extend, seq] rows concatenated: which keys a new token sees
        (then causality is the mask's matter). None: causal.
    causal
        False lets every new token see all keys of its request.
    window
        Keys that a token sees at most, itself included; 0 means all.
    """

    req_to_token: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    extend_lens: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    causal: bool = True
    window: int = 0

    def __post_init__(self):
        if self.req_to_token.dtype != torch.int32 or self.req_to_token.stride(-1) != 1:
            raise ValueError("req_to_token must be int32 with contiguous rows")
        for name in ("req_pool_indices", "seq_lens", "extend_lens"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.dtype != torch.int64 or not value.is_contiguous():
                object.__setattr__(self, name, value.to(torch.int64).contiguous())
            if value.numel() != self.size:
                raise ValueError(f"{name} has {value.numel()} entries for {self.size} requests")
        if self.mask is not None and (
            self.mask.element_size() != 1 or not self.mask.is_contiguous()
        ):
            raise ValueError("mask must be contiguous bool or uint8")

    @property
    def size(self) -> int:
        """Requests in the batch."""
        return self.seq_lens.numel()

    def struct(
        self, q_heads: int, kv_heads: int, head_dim: int, v_dim: int, scale: float, logit_cap: float
    ) -> CAttention:
        """The C struct without q, out and pools; it borrows this object's tensors."""
        pointer = [
            None if t is None else t.data_ptr()
            for t in (
                self.req_to_token,
                self.req_pool_indices,
                self.seq_lens,
                self.extend_lens,
                self.mask,
            )
        ]
        return CAttention(
            None,
            None,
            None,
            None,
            *pointer,
            0,
            0,
            0,
            0,
            self.req_to_token.stride(0),
            self.size,
            q_heads,
            kv_heads,
            head_dim,
            v_dim,
            int(self.causal),
            self.window,
            scale,
            logit_cap,
        )


def _pool_strides(pool: torch.Tensor, name: str) -> tuple[int, int, int]:
    if pool.dtype != torch.float32 or pool.dim() != 3 or not pool.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous float32 [slots, heads, dim], not {pool.dtype} "
            f"{tuple(pool.shape)}"
        )
    return pool.shape[1], pool.shape[2], pool.stride(0)


def attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    batch: Batch,
    scale: float,
    logit_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of new tokens whose keys and values are already in the pools.

    Parameters
    ----------
    q
        float32 [tokens, q_heads, head_dim], tokens in the order of the batch's requests.
    k_pool, v_pool
        float32 [slots, kv_heads, dim] of the layer.
    batch
        Requests, lengths and masks.
    scale
        Factor on q . k.
    logit_cap
        `cap * tanh(score / cap)` when positive.
    out
        float32 [tokens, q_heads, v_dim] or None.

    Returns
    -------
    torch.Tensor
        `out`. A token's result depends only on its query and the sequence of keys it sees.
    """
    kv_heads, head_dim, k_slot = _pool_strides(k_pool, "k_pool")
    v_heads, v_dim, v_slot = _pool_strides(v_pool, "v_pool")
    tokens, q_heads, q_dim = q.shape
    if q.dtype != torch.float32 or q.stride(2) != 1 or q.stride(1) != q_dim:
        raise ValueError("q must be float32 [tokens, heads, dim] with contiguous tokens")
    if q_dim != head_dim or v_heads != kv_heads or q_heads % kv_heads or q_heads > 64 * kv_heads:
        raise ValueError(
            f"{q_heads} query heads of {q_dim} do not fit {kv_heads} key heads of "
            f"{head_dim} and {v_heads} value heads"
        )
    expected = batch.size if batch.extend_lens is None else int(batch.extend_lens.sum())
    if expected != tokens:
        raise ValueError(f"q has {tokens} tokens, the batch has {expected}")
    if out is None:
        out = torch.empty(tokens, q_heads, v_dim)
    elif out.dtype != torch.float32 or out.stride(2) != 1 or out.stride(1) != v_dim:
        raise ValueError("out must be float32 with contiguous tokens")
    library = native()
    if library is None:
        return fallback.attention(q, k_pool, v_pool, batch, scale, logit_cap, out)
    struct = batch.struct(q_heads, kv_heads, head_dim, v_dim, scale, logit_cap)
    struct.q, struct.out = q.data_ptr(), out.data_ptr()
    struct.k_pool, struct.v_pool = k_pool.data_ptr(), v_pool.data_ptr()
    struct.ldq, struct.ldo = q.stride(0), out.stride(0)
    struct.k_slot, struct.v_slot = k_slot, v_slot
    library.kvtop_attention(ctypes.byref(struct))
    return out

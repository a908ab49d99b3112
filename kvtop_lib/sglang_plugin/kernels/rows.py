"""Row-wise kernels: RMSNorm, RoPE, SiLU-and-multiply, the store into the KV pool, argmax."""

import torch

from .lib import native
from .linear import rows_of


def _weight(weight: torch.Tensor, width: int) -> torch.Tensor:
    if weight.dtype != torch.float32 or weight.shape != (width,) or not weight.is_contiguous():
        raise ValueError(
            f"the norm's weight must be contiguous float32 [{width}], "
            f"not {weight.dtype} {tuple(weight.shape)}"
        )
    return weight


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis of float32 [..., H]; x is kept."""
    width = x.shape[-1]
    rows, ldx = rows_of(x, width, "x")
    _weight(weight, width)
    library = native()
    if library is None:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
    out = torch.empty(x.shape)
    library.kvtop_norm(
        x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), rows, width, ldx, 0, width, eps
    )
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    """`residual += x`, then `x = rms_norm(residual)`, both in place (float32 [..., H])."""
    width = x.shape[-1]
    rows, ldx = rows_of(x, width, "x")
    residual_rows, ldr = rows_of(residual, width, "residual")
    _weight(weight, width)
    if rows != residual_rows:
        raise ValueError(f"x has {rows} rows, residual has {residual_rows}")
    library = native()
    if library is None:
        residual.add_(x)
        x.copy_(residual * torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + eps) * weight)
        return
    library.kvtop_norm(
        residual.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        x.data_ptr(),
        rows,
        width,
        ldr,
        ldx,
        ldx,
        eps,
    )


def rope_(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    head_dim: int,
    cos_sin_cache: torch.Tensor,
) -> None:
    """Rotate q and k in place, neox style (halves, not pairs).

    Parameters
    ----------
    positions
        int64 [tokens].
    q, k
        float32 [tokens, heads * head_dim]; views of one qkv matrix are fine.
    head_dim
        Elements per head; the first `cos_sin_cache.shape[1]` of them are rotated, the rest kept.
    cos_sin_cache
        float32 [positions, rotary]: cosines in the first half of a row, sines in the second, as
        in SGLang's `RotaryEmbedding`.
    """
    tokens, ldq = rows_of(q, q.shape[-1], "q")
    key_tokens, ldk = rows_of(k, k.shape[-1], "k")
    rotary = cos_sin_cache.shape[1]
    if positions.dtype != torch.int64 or not positions.is_contiguous():
        raise ValueError("positions must be contiguous int64")
    if not tokens == key_tokens == positions.numel():
        raise ValueError(f"{tokens} rows of q, {key_tokens} of k, {positions.numel()} positions")
    if cos_sin_cache.dtype != torch.float32 or not cos_sin_cache.is_contiguous():
        raise ValueError("cos_sin_cache must be contiguous float32")
    if rotary > head_dim or q.shape[-1] % head_dim or k.shape[-1] % head_dim:
        raise ValueError(f"head_dim {head_dim} does not fit q, k or the rotary width {rotary}")
    library = native()
    if library is None:
        cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
        for x in (q, k):
            heads = x.view(tokens, -1, head_dim)[..., :rotary]
            a, b = (half.clone() for half in heads.chunk(2, dim=-1))
            heads.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))
        return
    library.kvtop_rope(
        positions.data_ptr(),
        cos_sin_cache.data_ptr(),
        q.data_ptr(),
        k.data_ptr(),
        tokens,
        q.shape[-1] // head_dim,
        k.shape[-1] // head_dim,
        head_dim,
        rotary,
        ldq,
        ldk,
    )


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """`silu(x[..., :F]) * x[..., F:]` of float32 [..., 2 F]."""
    half = x.shape[-1] // 2
    rows, ldx = rows_of(x, 2 * half, "x")
    if out is None:
        out = torch.empty(*x.shape[:-1], half)
    elif out.shape != (*x.shape[:-1], half) or not out.is_contiguous():
        raise ValueError(f"out must be contiguous {(*x.shape[:-1], half)}")
    library = native()
    if library is None:
        return torch.mul(torch.nn.functional.silu(x[..., :half]), x[..., half:], out=out)
    library.kvtop_silu_and_mul(x.data_ptr(), out.data_ptr(), rows, half, ldx)
    return out


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write the rows of k and v ([tokens, heads * dim]) to `slots` (int64) of one layer's pools.

    The pools are contiguous float32 [slots, heads, dim] (or flattened behind the first axis).
    """
    width = k_pool[0].numel()
    tokens, ldk = rows_of(k, width, "k")
    _, ldv = rows_of(v, width, "v")
    if not (
        k_pool.is_contiguous()
        and v_pool.is_contiguous()
        and k_pool.shape == v_pool.shape
        and k_pool.dtype == v_pool.dtype == torch.float32
    ):
        raise ValueError("the KV pools must be contiguous float32 of one shape")
    if slots.dtype != torch.int64 or slots.numel() != tokens or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64 [{tokens}]")
    library = native()
    if library is None:
        k_pool.view(-1, width)[slots] = k
        v_pool.view(-1, width)[slots] = v
        return
    library.kvtop_store_kv(
        slots.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        k_pool.data_ptr(),
        v_pool.data_ptr(),
        tokens,
        width,
        ldk,
        ldv,
        width,
    )


def argmax(x: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: index of the largest element of each row, the first of equal ones."""
    rows, ldx = rows_of(x, x.shape[-1], "x")
    library = native()
    if library is None:
        return (x == x.amax(-1, keepdim=True)).to(torch.uint8).argmax(-1)
    out = torch.empty(rows, dtype=torch.int64)
    library.kvtop_argmax(x.data_ptr(), out.data_ptr(), rows, x.shape[-1], ldx)
    return out

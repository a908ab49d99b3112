"""Norm, RoPE, SiLU, KV store and argmax against float64 loops."""

import numpy as np
import pytest
import torch
from kernels_help import COMPILED, VARIANTS, bits, draw, on

from kvtop_lib.sglang_plugin import kernels

variants = pytest.mark.parametrize("variant", VARIANTS)


def slow_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = [r / np.sqrt((r * r).mean() + eps) * weight.double().numpy() for r in x.double().numpy()]
    return torch.tensor(np.array(rows)).float()


def slow_rope(x, positions, head_dim, cache):
    """Rotate pair (i, i + half) of each head by its angle, one element at a time."""
    out, half = x.double().clone(), cache.shape[1] // 2
    for t, p in enumerate(positions.tolist()):
        for head in range(x.shape[1] // head_dim):
            for i in range(half):
                a, b = head * head_dim + i, head * head_dim + i + half
                cos, sin = float(cache[p, i]), float(cache[p, half + i])
                out[t, a] = float(x[t, a]) * cos - float(x[t, b]) * sin
                out[t, b] = float(x[t, b]) * cos + float(x[t, a]) * sin
    return out.float()


@variants
@pytest.mark.parametrize("rows, width", [(1, 576), (48, 576), (3, 5), (2, 16), (7, 33), (300, 64)])
def test_norms(variant, rows, width):
    x, residual, weight = draw(rows, width), draw(rows, width, seed=1), draw(width, seed=2)
    summed = x + residual
    with on(variant):
        got = kernels.rms_norm(x, weight, 1e-5)
        kernels.fused_add_rms_norm(y := x.clone(), r := residual.clone(), weight, 1e-5)
    assert torch.allclose(got, slow_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-6)
    assert torch.equal(r, summed)
    assert torch.allclose(y, slow_norm(summed, weight, 1e-5), rtol=2e-6, atol=1e-6)


@variants
@pytest.mark.parametrize("head_dim, rotary", [(64, 64), (64, 32), (10, 6), (32, 32)])
@pytest.mark.parametrize("tokens", [1, 48])
def test_rope_full_and_partial(variant, head_dim, rotary, tokens):
    cache = draw(20, rotary, seed=5)
    qkv, positions = draw(tokens, 5 * head_dim), torch.arange(tokens) % 20
    q, k, v = qkv.clone().split([2 * head_dim, 2 * head_dim, head_dim], dim=-1)
    with on(variant):
        kernels.rope_(positions, q, k, head_dim, cache)
    assert torch.allclose(
        q, slow_rope(qkv[:, : 2 * head_dim], positions, head_dim, cache), atol=1e-6
    )
    assert torch.allclose(
        k, slow_rope(qkv[:, 2 * head_dim : 4 * head_dim], positions, head_dim, cache), atol=1e-6
    )
    assert torch.equal(v, qkv[:, 4 * head_dim :])


@variants
@pytest.mark.parametrize("rows, width", [(1, 1536), (48, 512), (3, 7), (2, 17)])
def test_silu_and_mul(variant, rows, width):
    x = draw(rows, 2 * width) * 20
    gate, up = x.double().chunk(2, dim=-1)
    with on(variant):
        got = kernels.silu_and_mul(x)
    assert torch.allclose(got, (gate / (1 + torch.exp(-gate)) * up).float(), rtol=1e-6, atol=1e-6)


@variants
def test_silu_of_extremes_is_finite(variant):
    x = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 100.0, 1e4, 3.0]])
    with on(variant):
        got = kernels.silu_and_mul(torch.cat((x, torch.ones_like(x)), dim=-1))
    assert torch.allclose(got, torch.tensor([[0.0, 0, 0, 0, 88, 100, 1e4, 2.8577223]]), atol=1e-5)


@variants
def test_store_writes_only_its_slots(variant):
    qkv, slots = draw(5, 40), torch.tensor([7, 0, 3, 9, 4])
    k_pool, v_pool = torch.zeros(2, 10, 2, 8)
    k, v = qkv[:, :16], qkv[:, 20:36]
    with on(variant):
        kernels.store_kv(k, v, k_pool, v_pool, slots)
    for pool, rows in ((k_pool, k), (v_pool, v)):
        for slot in range(10):
            expected = rows[slots.tolist().index(slot)] if slot in slots.tolist() else 0
            assert (pool[slot].flatten() == expected).all()


@variants
def test_argmax_takes_the_first_of_equals(variant):
    x = draw(5, 100)
    x[0, [30, 60]] = 9.0
    x[1, 99] = 9.0
    with on(variant):
        got = kernels.argmax(x)
    assert got.tolist() == [
        30,
        99,
        *(max(range(100), key=row.__getitem__) for row in x[2:].tolist()),
    ]


def test_vector_width_and_threads_do_not_change_a_bit():
    x, weight, cache = draw(300, 74), draw(74, seed=1), draw(300, 20, seed=2)
    results = []
    for variant in COMPILED:
        for threads in (1, 3):
            with on(variant):
                kernels.set_threads(threads)
                q, k = x.clone(), x.clone()
                kernels.rope_(torch.arange(300), q, k, 37, cache)
                results.append(
                    torch.cat(
                        (kernels.rms_norm(x, weight, 1e-6), q, kernels.silu_and_mul(x)), dim=-1
                    )
                )
    assert all(torch.equal(bits(r), bits(results[0])) for r in results)


def test_refusals():
    x = draw(4, 16)
    with pytest.raises(ValueError, match="norm's weight"):
        kernels.rms_norm(x, draw(15), 1e-6)
    with pytest.raises(ValueError, match="positions must be"):
        kernels.rope_(torch.arange(4).int(), x, x.clone(), 8, draw(9, 8))
    with pytest.raises(ValueError, match="does not fit"):
        kernels.rope_(torch.arange(4), x, x.clone(), 8, draw(9, 10))
    with pytest.raises(ValueError, match="contiguous rows"):
        kernels.silu_and_mul(draw(16, 4).T)
    with pytest.raises(ValueError, match="slots must be"):
        kernels.store_kv(x, x, *torch.zeros(2, 9, 2, 8), torch.arange(3))

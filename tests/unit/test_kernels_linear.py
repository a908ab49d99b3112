"""The packed linear layer against float64 and against itself with other rows, threads, CPUs."""

import numpy as np
import pytest
import torch
from kernels_help import COMPILED, VARIANTS, bits, draw, on

from kvtop_lib.sglang_plugin import kernels

SHAPES = [(1, 1), (16, 2), (17, 1), (33, 17), (48, 576), (100, 65), (64, 1537)]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 48, 65, 130]


def fma_chain(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One sequential chain over k: the product is exact in float64, so each step rounds once
    to float64 and once to float32 (an fma rounds once; they differ only at double-rounding ties).
    """
    acc = np.zeros((x.shape[0], w.shape[0]), dtype=np.float32)
    for k in range(x.shape[1]):
        exact = np.outer(x[:, k].astype(np.float64), w[:, k].astype(np.float64))
        acc = (exact + acc.astype(np.float64)).astype(np.float32)
    return acc


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n, k", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_float64(variant, n, k, dtype):
    weight, bias = draw(n, k).to(dtype), draw(n, seed=1)
    packed = kernels.pack_weight(weight)
    assert packed.is_float32 == (dtype == torch.float32)
    for rows in (1, 3, 8, 50):
        x = draw(rows, k, seed=rows)
        truth = x.double() @ weight.double().T + bias.double()
        with on(variant):
            got = kernels.linear(x, packed, bias)
        assert (got - truth).abs().max() < 3e-5 * k**0.5


@pytest.mark.parametrize("variant", COMPILED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_is_one_fma_chain_in_order(variant, dtype):
    weight, x = draw(40, 301).to(dtype), draw(5, 301, seed=2)
    with on(variant):
        got = kernels.linear(x, kernels.pack_weight(weight))
    chain = torch.from_numpy(fma_chain(x.numpy(), weight.float().numpy()))
    assert (bits(got) == bits(chain)).float().mean() > 0.99


@pytest.mark.parametrize("n, k", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_threads_and_vector_width_do_not_change_a_bit(n, k, dtype):
    packed, x = kernels.pack_weight(draw(n, k).to(dtype)), draw(max(ROWS), k, seed=3)
    with on("best"):
        truth = torch.cat([kernels.linear(x[i : i + 1], packed) for i in range(x.shape[0])])
    for variant in COMPILED:
        for threads in (1, 2, 3):
            with on(variant):
                kernels.set_threads(threads)
                for rows in ROWS:
                    got = kernels.linear(x[:rows], packed)
                    assert torch.equal(bits(got), bits(truth[:rows])), (variant, threads, rows)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (17, 3), (31, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packing_keeps_every_weight(shape, dtype):
    weight = draw(*shape).to(dtype)
    assert torch.equal(kernels.pack_weight(weight).dense, weight.float())


def test_float32_weights_that_are_bf16_numbers_are_stored_as_bf16():
    assert not kernels.pack_weight(draw(20, 20).bfloat16().float()).is_float32


@pytest.mark.parametrize("variant", VARIANTS)
def test_strided_rows_batches_out_and_no_rows(variant):
    packed = kernels.pack_weight(draw(24, 10).bfloat16())
    wide, out = draw(6, 30), torch.zeros(6, 50)
    with on(variant):
        plain = kernels.linear(wide[:, 10:20].contiguous(), packed)
        kernels.linear(wide[:, 10:20], packed, out=out[:, 5:29])
        assert torch.equal(out[:, 5:29], plain)
        assert not out[:, :5].any() and not out[:, 29:].any()
        assert kernels.linear(draw(2, 3, 10), packed).shape == (2, 3, 24)
        assert kernels.linear(draw(0, 10), packed).shape == (0, 24)


def test_refuses_what_it_cannot_do_exactly():
    packed = kernels.pack_weight(draw(24, 10).bfloat16())
    with pytest.raises(ValueError, match="not exactly bf16"):
        kernels.pack_weight(draw(4, 4), allow_float32=False)
    with pytest.raises(ValueError, match="bfloat16 or float32 matrix"):
        kernels.pack_weight(draw(4, 4).half())
    with pytest.raises(ValueError, match="10 columns"):
        kernels.linear(draw(2, 9), packed)
    with pytest.raises(ValueError, match="contiguous rows"):
        kernels.linear(draw(10, 2).T, packed)
    with pytest.raises(ValueError, match="bias"):
        kernels.linear(draw(2, 10), packed, draw(23))
    with pytest.raises(ValueError, match="rows"):
        kernels.linear(draw(2, 10), packed, out=torch.empty(3, 24))

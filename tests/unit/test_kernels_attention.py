"""Paged attention against a float64 loop over tokens, and against itself in other batches."""

import dataclasses

import numpy as np
import pytest
import torch
from kernels_help import COMPILED, VARIANTS, bits, draw, on

from kvtop_lib.sglang_plugin import kernels

variants = pytest.mark.parametrize("variant", VARIANTS)


@dataclasses.dataclass(frozen=True)
class Case:
    """A ragged batch on a shuffled pool."""

    lens: list[int]
    extends: list[int]
    q_heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    v_dim: int = 64
    mask: list[np.ndarray] | None = None
    causal: bool = True
    window: int = 0
    cap: float = 0.0

    def build(self):
        size, longest = len(self.lens), max(self.lens)
        slots = torch.randperm(size * longest + 3, generator=torch.Generator().manual_seed(1))
        table = torch.zeros(size + 2, longest + 5, dtype=torch.int32)
        rows = torch.arange(size).flip(0) + 1  # rows of the table in another order
        for i, row in enumerate(rows):
            table[row, :longest] = slots[i * longest : (i + 1) * longest]
        mask = None
        if self.mask is not None:
            mask = torch.from_numpy(np.concatenate([m.ravel() for m in self.mask]))
        batch = kernels.Batch(
            table,
            rows,
            torch.tensor(self.lens),
            torch.tensor(self.extends),
            mask,
            self.causal,
            self.window,
        )
        k = draw(len(slots), self.kv_heads, self.dim, seed=2)
        v = draw(len(slots), self.kv_heads, self.v_dim, seed=3)
        q = draw(sum(self.extends), self.q_heads, self.dim, seed=4)
        return q, k, v, batch

    def truth(self, q, k, v, batch):
        """Softmax attention of each (token, head) in float64."""
        out, t = np.zeros((q.shape[0], self.q_heads, self.v_dim)), 0
        q, k, v = (x.double().numpy() for x in (q, k, v))
        for i, (length, extend) in enumerate(zip(self.lens, self.extends, strict=True)):
            slots = batch.req_to_token[batch.req_pool_indices[i]].tolist()
            for j in range(extend):
                own = length - extend + j
                seen = [
                    p
                    for p in range(length)
                    if (
                        self.mask[i][j, p]
                        if self.mask is not None
                        else (not self.causal or p <= own)
                        and (self.window == 0 or p > own - self.window)
                    )
                ]
                for h in range(self.q_heads):
                    g = h // (self.q_heads // self.kv_heads)
                    s = np.array([q[t, h] @ k[slots[p], g] for p in seen]) * 0.2
                    if self.cap:
                        s = self.cap * np.tanh(s / self.cap)
                    w = np.exp(s - s.max())
                    out[t, h] = sum(
                        wp * v[slots[p], g] for wp, p in zip(w / w.sum(), seen, strict=True)
                    )
                t += 1
        return torch.from_numpy(out).float()


def tree(length: int, extend: int, parents: list[int]) -> np.ndarray:
    """bool [extend, length]: the prefix and each draft token's ancestors and itself."""
    mask = np.zeros((extend, length), dtype=bool)
    mask[:, : length - extend] = True
    for j in range(extend):
        node = j
        while node >= 0:
            mask[j, length - extend + node] = True
            node = parents[node]
    return mask


PARENTS = [-1, 0, 0, 1, 1, 2, 5]
CASES = {
    "decode of one": Case([5], [1]),
    "decode of 48": Case([1 + 3 * i for i in range(48)], [1] * 48, 3, 1, 16, 16),
    "ragged, without prefix": Case([1, 17, 64, 3], [1, 17, 64, 3], 4, 2, 32, 32),
    "prefix hits": Case([70, 33, 9], [2, 30, 8]),
    "verify of width 4": Case([100, 7, 65], [4, 4, 4]),
    "one head each": Case([20, 40], [5, 1], 2, 2, 16, 16),
    "odd sizes": Case([19, 35], [3, 1], 5, 1, 20, 12),
    "wide group": Case([40], [3], 32, 1, 16, 16),
    "tree": Case([30, 7, 90], [7, 7, 7], mask=[tree(n, 7, PARENTS) for n in (30, 7, 90)]),
    "window": Case([90, 5, 40], [3, 5, 40], window=18, q_heads=3, kv_heads=1),
    "logit cap": Case([30, 50], [2, 1], cap=1.5),
    "not causal": Case([30, 12], [12, 12], causal=False),
    "long": Case([700], [2], 3, 1, 16, 16),
}


@variants
@pytest.mark.parametrize("name", CASES)
def test_equals_float64(variant, name):
    case = CASES[name]
    q, k, v, batch = case.build()
    with on(variant):
        got = kernels.attention(q, k, v, batch, 0.2, case.cap)
    assert torch.allclose(got, case.truth(q, k, v, batch), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_threads_and_vector_width_do_not_change_a_bit(name):
    case = CASES[name]
    q, k, v, batch = case.build()
    results = []
    for variant in COMPILED:
        for threads in (1, 2, 3):
            with on(variant):
                kernels.set_threads(threads)
                results.append(kernels.attention(q, k, v, batch, 0.2, case.cap))
    assert all(torch.equal(bits(r), bits(results[0])) for r in results)


@pytest.mark.parametrize("variant", COMPILED)
@pytest.mark.parametrize("window", [0, 18])
def test_decode_verify_and_prefill_agree_to_the_bit(variant, window):
    case = Case([150], [150], window=window)
    q, k, v, batch = case.build()
    row = batch.req_pool_indices
    with on(variant):
        whole = kernels.attention(q, k, v, batch, 0.2)
        for width in (1, 2, 4, 7):
            for end in range(width, 151, width):
                part = kernels.Batch(
                    batch.req_to_token,
                    row,
                    torch.tensor([end]),
                    torch.tensor([width]),
                    window=window,
                )
                got = kernels.attention(q[end - width : end], k, v, part, 0.2)
                assert torch.equal(bits(got), bits(whole[end - width : end])), (width, end)


@pytest.mark.parametrize("variant", COMPILED)
@pytest.mark.parametrize("prefix", [3, 60, 250])
def test_a_tree_branch_agrees_with_decode_of_it_to_the_bit(variant, prefix):
    length = prefix + len(PARENTS)
    q, k, v, batch = Case([length], [7], mask=[tree(length, 7, PARENTS)]).build()
    slots = batch.req_to_token[batch.req_pool_indices[0]]
    with on(variant):
        verified = kernels.attention(q, k, v, batch, 0.2)
        for node in range(7):
            path = [node]
            while PARENTS[path[0]] >= 0:
                path.insert(0, PARENTS[path[0]])
            keys = [*range(prefix), *(prefix + p for p in path)]
            alone = kernels.Batch(
                slots[keys].unsqueeze(0), torch.tensor([0]), torch.tensor([len(keys)])
            )
            got = kernels.attention(q[node : node + 1], k, v, alone, 0.2)
            assert torch.equal(bits(got[0]), bits(verified[node])), node


@variants
def test_int32_lengths_strided_q_and_out(variant):
    case = CASES["prefix hits"]
    q, k, v, batch = case.build()
    narrow = kernels.Batch(
        batch.req_to_token,
        batch.req_pool_indices.int(),
        batch.seq_lens.int(),
        batch.extend_lens.int(),
    )
    wide = torch.zeros(q.shape[0], 15 * 64)
    wide[:, : 9 * 64] = q.flatten(1)
    out = torch.zeros(q.shape[0], 1000)
    view = out[:, 4 : 4 + 9 * 64].view(-1, 9, 64)
    with on(variant):
        plain = kernels.attention(q, k, v, batch, 0.2)
        kernels.attention(wide[:, : 9 * 64].view(-1, 9, 64), k, v, narrow, 0.2, out=view)
    assert torch.equal(view, plain)
    assert not out[:, :4].any() and not out[:, 4 + 9 * 64 :].any()


def test_refusals():
    q, k, v, batch = CASES["decode of one"].build()
    with pytest.raises(ValueError, match="tokens, the batch has"):
        kernels.attention(draw(2, 9, 64), k, v, batch, 1.0)
    with pytest.raises(ValueError, match="k_pool must be"):
        kernels.attention(q, k.bfloat16(), v, batch, 1.0)
    with pytest.raises(ValueError, match="contiguous tokens"):
        kernels.attention(draw(1, 64, 9).transpose(1, 2), k, v, batch, 1.0)
    with pytest.raises(ValueError, match="query heads"):
        kernels.attention(draw(1, 8, 64), k, v, batch, 1.0)
    with pytest.raises(ValueError, match="int32"):
        kernels.Batch(batch.req_to_token.long(), batch.req_pool_indices, batch.seq_lens)
    with pytest.raises(ValueError, match="entries"):
        kernels.Batch(batch.req_to_token, batch.req_pool_indices, torch.tensor([1, 2]))

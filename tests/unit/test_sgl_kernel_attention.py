"""Attention ops of the stand-in ``sgl_kernel`` against sums over single numbers in float64."""

import math

import numpy as np
import pytest
import stand_in
import torch

sgl_kernel = stand_in.load()
HEADS, KV_HEADS, DIM, POOL, WIDTH = 4, 2, 8, 400, 40
SCALE = DIM**-0.5


def pool(seed):
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, POOL, KV_HEADS, DIM, generator=generator)
    table = torch.stack([torch.randperm(POOL, generator=generator)[:WIDTH] for _ in range(60)])
    return generator, k.contiguous(), v.contiguous(), table.int()


def slow_attention(q, k, v, slots, sees):
    """One query token; ``sees`` lists the positions that it attends to."""
    out = np.zeros((HEADS, DIM))
    for h in range(HEADS):
        g = h * KV_HEADS // HEADS
        scores = [
            sum(float(q[h, d]) * float(k[slots[p], g, d]) for d in range(DIM)) * SCALE for p in sees
        ]
        weights = [math.exp(s - max(scores)) for s in scores]
        for p, w in zip(sees, weights, strict=True):
            for d in range(DIM):
                out[h, d] += w / sum(weights) * float(v[slots[p], g, d])
    return out


def extend(q, k, v, table, rows, lengths, new, mask=None):
    out = torch.empty_like(q)
    starts = torch.cumsum(torch.tensor(new), 0) - torch.tensor(new)
    torch.ops.sgl_kernel.extend_attention_cpu(
        q, None, None, out, k, v, 1.0, 1.0, table, rows, torch.tensor(lengths),
        torch.tensor(new, dtype=torch.int32), starts.int(), max(new), SCALE, 0.0, False, 0,
        None, None, mask, True,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("bs", [1, 3, 48])
def test_decode_stores_its_token_and_attends_to_all(bs):
    generator, k, v, table = pool(bs)
    rows = torch.randperm(60, generator=generator)[:bs]
    lengths = torch.randint(1, WIDTH, (bs,), generator=generator)
    # Own slots, so that one request's store cannot change what another one reads.
    own = torch.arange(POOL, POOL + bs)
    k, v = (torch.cat((x, torch.zeros(bs, KV_HEADS, DIM))) for x in (k, v))
    table[rows, lengths - 1] = own.int()
    q = torch.randn(bs, HEADS, DIM, generator=generator)
    new_k, new_v = torch.randn(2, bs, KV_HEADS, DIM, generator=generator)
    out = torch.empty_like(q)
    torch.ops.sgl_kernel.decode_attention_cpu(
        q, k, v, 1.0, 1.0, out, new_k, new_v, own, torch.empty(0), table, rows, lengths,
        SCALE, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(k[own], new_k) and torch.equal(v[own], new_v)
    for b in range(min(bs, 6)):
        want = slow_attention(q[b], k, v, table[rows[b]].tolist(), range(int(lengths[b])))
        np.testing.assert_allclose(out[b].numpy(), want, rtol=1e-4, atol=1e-5)


def test_extend_is_causal_after_a_cached_prefix():
    generator, k, v, table = pool(7)
    rows, lengths, new = torch.tensor([5, 2, 9, 0]), [4, 17, 9, 1], [4, 3, 1, 1]
    q = torch.randn(sum(new), HEADS, DIM, generator=generator)
    out, at = extend(q, k, v, table, rows, lengths, new), 0
    for b, count in enumerate(new):
        for i in range(count):
            sees = range(lengths[b] - count + i + 1)
            want = slow_attention(q[at], k, v, table[rows[b]].tolist(), sees)
            np.testing.assert_allclose(out[at].numpy(), want, rtol=1e-4, atol=1e-5)
            at += 1


def test_tree_mask_hides_siblings_but_not_the_prefix():
    generator, k, v, table = pool(8)
    rows, lengths, new = torch.tensor([1, 3]), [12, 8], [4, 4]
    parents = [[-1, 0, 0, 2], [-1, 0, 1, 0]]
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    for b, parent in enumerate(parents):
        for i in range(4):
            mask[b, i, [i, *stand_in.path_to_root(parent, i)]] = True
    q = torch.randn(8, HEADS, DIM, generator=generator)
    out = extend(q, k, v, table, rows, lengths, new, mask.flatten())
    for b in range(2):
        for i in range(4):
            prefix = lengths[b] - 4
            sees = [*range(prefix), *(prefix + j for j in range(4) if mask[b, i, j])]
            want = slow_attention(q[b * 4 + i], k, v, table[rows[b]].tolist(), sees)
            np.testing.assert_allclose(out[b * 4 + i].numpy(), want, rtol=1e-4, atol=1e-5)


def test_what_is_not_served_is_refused():
    _, k, v, table = pool(9)
    q = torch.zeros(1, HEADS, DIM)
    with pytest.raises(NotImplementedError, match="plain self-attention"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            q, k, v, 0.5, 1.0, q.clone(), None, None, torch.tensor([0]), q, table,
            torch.tensor([0]), torch.tensor([1]), SCALE, 0.0,
        )  # fmt: skip

"""KV slot tables, slot moves and id shifts of the stand-in ``sgl_kernel``."""

import random

import pytest
import stand_in
import torch

sgl_kernel = stand_in.load()
POOL, WIDTH = 60, 64


def table(seed):
    """A slot table without repeats, and requests in a scrambled order of rows."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(POOL * WIDTH, generator=generator).view(POOL, WIDTH).int()
    return slots, torch.randperm(POOL, generator=generator)


def spans(seed, bs):
    """Ragged [start, end) of every request, empty ones and cached prefixes among them."""
    rng = random.Random(seed)
    start = [rng.choice([0, 0, rng.randrange(30)]) for _ in range(bs)]
    return start, [s + rng.choice([0, 1, rng.randrange(1, 30)]) for s in start]


@pytest.mark.parametrize("bs", [1, 7, 48])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_are_written_and_read_back(bs, dtype):
    slots, rows = table(bs)
    start, end = spans(bs, bs)
    new = torch.arange(10_000, 10_000 + sum(e - s for s, e in zip(start, end, strict=True)))
    expected, at = slots.clone(), 0
    for b in range(bs):
        for column in range(start[b], end[b]):
            expected[rows[b], column] = new[at]
            at += 1
    bounds = torch.tensor(start, dtype=dtype), torch.tensor(end, dtype=dtype)
    sgl_kernel.assign_req_to_token_pool_cpu(rows[:bs], slots, *bounds, new, WIDTH)
    assert torch.equal(slots, expected)
    # SGLang's output buffers may be longer than what is read.
    out = torch.full((new.numel() + 3,), -5)
    sgl_kernel.assign_extend_cache_locs_cpu(rows[:bs], slots, *bounds, out, WIDTH)
    assert out.tolist() == new.tolist() + [-5] * 3


@pytest.mark.parametrize("bs, topk, steps", [(1, 1, 1), (48, 1, 3), (5, 4, 3)])
def test_draft_slots_follow_the_committed_tokens(bs, topk, steps):
    slots, rows = table(bs)
    lengths = torch.randint(1, 40, (bs,), generator=torch.Generator().manual_seed(1))
    out = torch.zeros(bs * topk * steps, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        rows[:bs], slots, lengths, out, WIDTH, topk, steps
    )
    expected = [
        int(slots[rows[b], int(lengths[b]) + i]) for b in range(bs) for i in range(topk * steps)
    ]
    assert out.tolist() == expected


@pytest.mark.parametrize("bs, topk, steps", [(1, 1, 3), (48, 1, 3), (5, 4, 3), (2, 2, 4)])
def test_draft_rows_hold_the_prefix_and_their_own_branch(bs, topk, steps):
    slots, rows = table(bs)
    lengths = torch.randint(1, 40, (bs,), generator=torch.Generator().manual_seed(2))
    out = sgl_kernel.build_draft_decode_metadata_cpu(slots, rows[:bs], lengths, topk, steps, WIDTH)
    assert out.shape == (bs * topk, WIDTH)
    for b in range(bs):
        row, length = slots[rows[b]].tolist(), int(lengths[b])
        for t in range(topk):
            own = row[length + t * steps : length + (t + 1) * steps]
            assert out[b * topk + t, : length + steps].tolist() == row[:length] + own


@pytest.mark.parametrize("bs, width", [(1, 4), (48, 5)])
def test_accepted_slots_and_bonus_tokens(bs, width):
    rng = random.Random(width)
    accepted = [rng.randrange(1, width + 1) for _ in range(bs)]
    index = torch.full((bs, width), -1, dtype=torch.int32)
    for b, count in enumerate(accepted):
        for i in range(count):
            index[b, i] = b * width + i
    slots = torch.randint(0, 999, (bs * width,), generator=torch.Generator().manual_seed(3))
    out = torch.zeros(bs * width, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(index, slots, out)
    kept = [int(slots[i]) for i in index.flatten().tolist() if i >= 0]
    assert out.tolist() == kept + [0] * (bs * width - len(kept))
    tokens = torch.arange(bs * width).view(bs, width)
    bonus = torch.zeros(bs, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor(accepted), bonus, width)
    assert bonus.tolist() == [b * width + accepted[b] - 1 for b in range(bs)]


@pytest.mark.parametrize("select", [False, True])
def test_ids_are_rotated_within_their_request(select):
    lengths, new = [3, 0, 1, 5], [90, 91, 92, 93]
    starts, ids = [0, 3, 3, 4], torch.arange(9)
    chosen = torch.tensor([1, 0, 3, 6]) if select else None
    sgl_kernel.rotate_input_ids_cpu(
        ids, torch.tensor(starts), torch.tensor(lengths), torch.tensor(new)[:, None], chosen
    )
    # With a selection the last place keeps its id and the chosen one is overwritten.
    expected = [1, 90, 2, 92, 5, 6, 93, 8, 8] if select else [1, 2, 90, 92, 5, 6, 7, 8, 93]
    assert ids.tolist() == expected


def test_rows_move_in_every_layer_as_if_read_at_once():
    generator = torch.Generator().manual_seed(4)
    layers = [torch.randn(40, 3, 8, generator=generator), torch.randn(40, 5, generator=generator)]
    before = [layer.clone() for layer in layers]
    target, source = torch.tensor([1, 2, 3, 0, 9]), torch.tensor([2, 3, 1, 0, 30])
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer[0].nbytes for layer in layers]),
        target,
        source,
    )
    for layer, old in zip(layers, before, strict=True):
        expected = old.clone()
        for t, s in zip(target.tolist(), source.tolist(), strict=True):
            expected[t] = old[s]
        assert torch.equal(layer, expected)

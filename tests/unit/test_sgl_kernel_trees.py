"""Draft trees of the stand-in ``sgl_kernel`` against plain Python on lists."""

import random

import pytest
import stand_in
import torch

sgl_kernel = stand_in.load()
FULL_MASK, QLEN_ONLY = 0, 1


def build(trees, lengths, topk, steps, mode, mask):
    bs, n = len(trees), len(trees[0].parent)
    positions = torch.full((bs * n,), -7)
    index, child, sibling = torch.full((3, bs, n), -1)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([t.parent_list for t in trees], dtype=torch.int64),
        torch.tensor([t.selected for t in trees], dtype=torch.int64).view(bs, n - 1),
        torch.tensor(lengths),
        mask,
        positions,
        index,
        child,
        sibling,
        topk,
        steps,
        n,
        mode,
    )
    return positions.view(bs, n), index, child, sibling


def expected_visible(parent):
    """Row i sees itself, its ancestors and the root."""
    n = len(parent)
    see = [{i, 0, *stand_in.path_to_root(parent, i)} for i in range(n)]
    return torch.tensor([[j in see[i] for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("topk, steps, n", [(1, 1, 2), (1, 3, 4), (1, 5, 6), (4, 3, 9), (3, 2, 12)])
@pytest.mark.parametrize("bs", [1, 5, 48])
def test_built_tree_has_the_draft_s_parents(topk, steps, n, bs):
    rng = random.Random(bs * 100 + n)
    trees = [stand_in.random_eagle_tree(rng, topk, steps, n) for _ in range(bs)]
    lengths = [rng.randrange(1, 90) for _ in range(bs)]
    mask = torch.ones(bs * n * n, dtype=torch.bool)
    positions, index, child, sibling = build(trees, lengths, topk, steps, QLEN_ONLY, mask)
    for b, tree in enumerate(trees):
        depth = [len(stand_in.path_to_root(tree.parent, i)) for i in range(n)]
        assert positions[b].tolist() == [lengths[b] + d for d in depth]
        assert index[b].tolist() == list(range(b * n, b * n + n))
        assert (child[b].tolist(), sibling[b].tolist()) == stand_in.slow_links(tree.parent)
        assert torch.equal(mask.view(bs, n, n)[b], expected_visible(tree.parent))


def test_full_mask_keeps_the_prefix_columns():
    rng = random.Random(0)
    trees = [stand_in.random_eagle_tree(rng, 3, 3, 7) for _ in range(3)]
    lengths = [4, 1, 9]
    mask = torch.ones(sum(7 * (length + 7) for length in lengths), dtype=torch.bool)
    build(trees, lengths, 3, 3, FULL_MASK, mask)
    start = 0
    for tree, length in zip(trees, lengths, strict=True):
        rows = mask[start : start + 7 * (length + 7)].view(7, length + 7)
        assert rows[:, :length].all()
        assert torch.equal(rows[:, length:], expected_visible(tree.parent))
        start += 7 * (length + 7)


def test_unknown_mask_mode_is_refused():
    tree = stand_in.random_eagle_tree(random.Random(1), 1, 1, 2)
    with pytest.raises(NotImplementedError, match="mask mode 2"):
        build([tree], [3], 1, 1, 2, torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("bs, n", [(1, 4), (3, 1), (48, 8), (7, 17)])
def test_reconstructed_tree_has_the_mask_s_parents(chain, bs, n):
    rng = random.Random(n)
    parents = [stand_in.random_parents(rng, n, chain) for _ in range(bs)]
    mask = torch.zeros(bs, n, n, dtype=torch.bool)
    for b, parent in enumerate(parents):
        for i in range(n):
            mask[b, i, [i, *stand_in.path_to_root(parent, i)]] = True
    lengths = torch.tensor([rng.randrange(1, 90) for _ in range(bs)])
    positions = torch.full((bs * n,), -7)
    index, child, sibling = torch.full((3, bs, n), -7)
    sgl_kernel.speculative.reconstruct_indices_from_tree_mask(
        mask.flatten(), lengths, positions, index, child, sibling, bs, n
    )
    for b, parent in enumerate(parents):
        depth = [len(stand_in.path_to_root(parent, i)) for i in range(n)]
        assert positions.view(bs, n)[b].tolist() == [int(lengths[b]) + d for d in depth]
        assert (child[b].tolist(), sibling[b].tolist()) == stand_in.slow_links(parent)
    assert index.flatten().tolist() == list(range(bs * n))


def slow_verify(parent, tokens, predicted, limit):
    """Follow the target's predictions from the root; the first matching child wins."""
    path = [0]
    while len(path) < limit:
        children = [i for i in range(len(parent)) if parent[i] == path[-1]]
        match = next((i for i in children if tokens[i] == predicted[path[-1]]), None)
        if match is None:
            break
        path.append(match)
    return path


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("bs, n, limit", [(1, 2, 2), (6, 4, 4), (48, 4, 4), (48, 12, 3), (5, 1, 1)])
def test_verify_follows_the_target_s_choice(chain, bs, n, limit):
    rng = random.Random(bs + n)
    parents = [stand_in.random_parents(rng, n, chain) for _ in range(bs)]
    # Three tokens only, so that walks are long and siblings sometimes carry equal tokens.
    tokens = torch.tensor([[rng.randrange(3) for _ in range(n)] for _ in range(bs)])
    predicted = torch.tensor([[rng.randrange(3) for _ in range(n)] for _ in range(bs)])
    links = [stand_in.slow_links(parent) for parent in parents]
    predicts = torch.full((bs * n,), -9, dtype=torch.int32)
    accept_index = torch.full((bs, limit), -1, dtype=torch.int32)
    accepted = torch.full((bs,), -9, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=tokens,
        retrive_index=torch.arange(bs * n).view(bs, n),
        retrive_next_token=torch.tensor([child for child, _ in links]),
        retrive_next_sibling=torch.tensor([sibling for _, sibling in links]),
        target_predict=predicted,
    )
    for b, parent in enumerate(parents):
        path = slow_verify(parent, tokens[b].tolist(), predicted[b].tolist(), limit)
        assert accepted[b] == len(path) - 1
        padded = [b * n + i for i in path] + [-1] * (limit - len(path))
        assert accept_index[b].tolist() == padded
        kept = [predicted[b, i].item() if i in path else -9 for i in range(n)]
        assert predicts.view(bs, n)[b].tolist() == kept

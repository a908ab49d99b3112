"""Draft trees: from the draft's choice, or from an ancestor mask, to the links verify walks.

A tree of ``n`` nodes is described per request by three rows of length ``n``:
``retrieve_index`` (the node's place in the flattened batch), ``retrieve_next_token`` (its first
child) and ``retrieve_next_sibling`` (the next child of the same parent); -1 means none. Node 0
is the root, the last committed token; children have larger numbers than their parents.
"""

import torch

FULL_MASK, QLEN_ONLY = 0, 1  # sglang.kernels.ops.speculative.spec_tree.TreeMaskMode


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = FULL_MASK,
) -> None:
    """Links, positions and attention mask of the trees that an EAGLE draft has chosen.

    Parameters
    ----------
    parent_list : [bs, 1 + topk * (steps - 1)] (empty for one step)
        Entry ``g`` is the candidate that expanded group ``g``; group 0 hangs on the root.
    selected_index : [bs, n - 1]
        Candidate of node ``i + 1``; candidate ``c`` belongs to group ``c // topk``.
    verified_seq_len : [bs] committed tokens
    tree_mask : flat bool, changed in place
        ``QLEN_ONLY``: [bs, n, n]. ``FULL_MASK``: request after request [n, seq_len + n], of
        which the first ``seq_len`` columns are left as they are.
    positions : [bs * n], retrieve_* : [bs, n], changed in place (links preset to -1)
    depth : draft steps
    """
    n, bs = draft_token_num, verified_seq_len.numel()
    parent = _parents(parent_list, selected_index, topk, n, bs)
    ancestor = _ancestors(parent, depth)
    visible = ancestor | torch.eye(n, dtype=torch.bool)
    visible[:, :, 0] = True
    hops = (torch.arange(n) > 0) + ancestor[:, :, 1:].sum(-1)
    positions.copy_((verified_seq_len[:, None] + hops).flatten())
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    _write_links(parent, retrieve_next_token, retrieve_next_sibling)
    if tree_mask_mode == QLEN_ONLY:
        tree_mask[: bs * n * n] = visible.flatten()
    elif tree_mask_mode == FULL_MASK:
        start = 0
        for row, length in enumerate(verified_seq_len.tolist()):
            size = n * (length + n)
            tree_mask[start : start + size].view(n, length + n)[:, length:] = visible[row]
            start += size
    else:
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} has no CPU version")


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Links and positions of the trees that an ancestor mask describes (NGRAM drafts).

    Parameters
    ----------
    tree_mask : flat bool [bs, n, n]
        ``[b, i, j]``: node ``j`` is an ancestor of node ``i``; only ``j < i`` counts.
    verified_seq_len : [bs] committed tokens
    positions : [bs * n], retrieve_* : [bs, n], all overwritten

    Notes
    -----
    The parent is the *last* ancestor. The first child is the first node that has this one as
    *any* ancestor, which is the same node because children come before grandchildren.
    """
    bs, n = batch_size, draft_token_num
    if bs == 0:
        return
    ancestor = tree_mask[: bs * n * n].view(bs, n, n).tril(-1)
    parent = torch.where(ancestor, torch.arange(n), -1).amax(-1)
    positions.copy_((verified_seq_len[:, None] + ancestor.sum(-1)).flatten())
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    _write_links(parent, retrieve_next_token, retrieve_next_sibling)


def _parents(
    parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int, n: int, bs: int
) -> torch.Tensor:
    """[bs, n] parent of every node; -1 for the root and for nodes whose parent was cut off."""
    root = torch.full((bs, 1), -1, dtype=torch.int64)
    if n == 1:
        return root
    selected = selected_index[:, : n - 1].to(torch.int64)
    group = selected // topk
    if parent_list.numel() == 0:
        return torch.cat((root, torch.zeros_like(group)), 1)
    expanded = parent_list.to(torch.int64).gather(1, group.clamp(max=parent_list.shape[1] - 1))
    same = selected[:, None, :] == expanded[:, :, None]
    place = torch.where(same.any(-1), same.int().argmax(-1) + 1, -1)
    return torch.cat((root, torch.where(group == 0, 0, place)), 1)


def _ancestors(parent: torch.Tensor, depth: int) -> torch.Tensor:
    """[bs, n, n] bool: node ``j`` is a proper ancestor of ``i`` (the root counts as one)."""
    bs, n = parent.shape
    ancestor = torch.zeros(bs, n, n, dtype=torch.bool)
    reached = parent
    for _ in range(depth):
        ancestor |= (reached[:, :, None] == torch.arange(n)) & (reached >= 0)[:, :, None]
        reached = torch.where(reached >= 0, parent.gather(1, reached.clamp(min=0)), -1)
    return ancestor


def _write_links(
    parent: torch.Tensor, next_token: torch.Tensor, next_sibling: torch.Tensor
) -> None:
    """First child and next sibling of every node, -1 where there is none; in place."""
    n = parent.shape[1]
    nodes = torch.arange(n)
    child = torch.where(parent[:, None, :] == nodes[:, None], nodes, n).amin(-1)
    next_token.copy_(torch.where(child < n, child, -1))
    same = (parent[:, None, :] == parent[:, :, None]) & (nodes > nodes[:, None])
    sibling = torch.where(same & (parent >= 0)[:, :, None], nodes, n).amin(-1)
    next_sibling.copy_(torch.where(sibling < n, sibling, -1))

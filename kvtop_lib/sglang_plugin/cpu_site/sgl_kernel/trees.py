"""Draft trees: from the draft's choice, or from an ancestor mask, to the links verify walks.

A tree of ``n`` nodes is described per request by three rows of length ``n``:
``retrieve_index`` (the node's place in the flattened batch), ``retrieve_next_token`` (its first
child) and ``retrieve_next_sibling`` (the next child of the same parent); -1 means none. Node 0
is the root, the last committed token; children have larger numbers than their parents.
"""

import functools

import numpy as np
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
    n, lengths = draft_token_num, verified_seq_len.numpy()
    bs = len(lengths)
    if topk == 1:
        parent, visible, hops = _chain(n)
    else:
        parent = _parents(parent_list.numpy(), selected_index.numpy(), topk, n, bs)
        ancestor = _ancestors(parent, depth)
        visible = ancestor | np.eye(n, dtype=bool)
        visible[:, :, 0] = True
        hops = (np.arange(n) > 0) + ancestor[:, :, 1:].sum(-1)
    _write(positions, lengths, hops, retrieve_index)
    _write_links(parent, retrieve_next_token, retrieve_next_sibling)
    _write_mask(tree_mask.numpy(), np.broadcast_to(visible, (bs, n, n)), lengths, tree_mask_mode)


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
    ancestor = np.tril(tree_mask.numpy()[: bs * n * n].reshape(bs, n, n), -1)
    parent = np.where(ancestor, np.arange(n), -1).max(-1)
    _write(positions, verified_seq_len.numpy(), ancestor.sum(-1), retrieve_index)
    _write_links(parent, retrieve_next_token, retrieve_next_sibling)


@functools.cache
def _chain(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parents [1, n], visibility [n, n] and depths [n] of a chain."""
    return np.arange(-1, n - 1)[None], np.tri(n, dtype=bool), np.arange(n)


def _parents(parent_list: np.ndarray, selected_index: np.ndarray, topk: int, n: int, bs: int):
    """[bs, n] parent of every node; -1 for the root and for nodes whose parent was cut off."""
    parent = np.full((bs, n), -1)
    if n == 1:
        return parent
    selected = selected_index[:, : n - 1]
    group = selected // topk
    if parent_list.size == 0:
        parent[:, 1:] = 0
        return parent
    expanded = np.take_along_axis(parent_list, np.minimum(group, parent_list.shape[1] - 1), 1)
    same = selected[:, None, :] == expanded[:, :, None]
    place = np.where(same.any(-1), same.argmax(-1) + 1, -1)
    parent[:, 1:] = np.where(group == 0, 0, place)
    return parent


def _ancestors(parent: np.ndarray, depth: int) -> np.ndarray:
    """[bs, n, n] bool: node ``j`` is a proper ancestor of ``i`` (the root counts as one)."""
    bs, n = parent.shape
    ancestor = np.zeros((bs, n, n), dtype=bool)
    reached = parent
    for _ in range(depth):
        ancestor |= (reached[:, :, None] == np.arange(n)) & (reached >= 0)[:, :, None]
        above = np.take_along_axis(parent, np.maximum(reached, 0), 1)
        reached = np.where(reached >= 0, above, -1)
    return ancestor


def _write(positions, lengths: np.ndarray, hops: np.ndarray, retrieve_index) -> None:
    """Position of every node from its depth, and its place in the flattened batch; in place."""
    bs, n = retrieve_index.shape
    positions.numpy()[:] = (lengths[:, None] + hops).ravel()
    retrieve_index.numpy()[:] = np.arange(bs * n).reshape(bs, n)


def _write_links(parent: np.ndarray, next_token, next_sibling) -> None:
    """First child and next sibling of every node, -1 where there is none; in place."""
    n = parent.shape[1]
    nodes = np.arange(n)
    child = np.where(parent[:, None, :] == nodes[:, None], nodes, n).min(-1)
    next_token.numpy()[:] = np.where(child < n, child, -1)
    same = (parent[:, None, :] == parent[:, :, None]) & (nodes > nodes[:, None])
    sibling = np.where(same & (parent >= 0)[:, :, None], nodes, n).min(-1)
    next_sibling.numpy()[:] = np.where(sibling < n, sibling, -1)


def _write_mask(mask: np.ndarray, visible: np.ndarray, lengths: np.ndarray, mode: int) -> None:
    """Lay the visibility [bs, n, n] of the draft tokens out as ``mode`` wants it, in place."""
    bs, n, _ = visible.shape
    if mode == QLEN_ONLY:
        mask[: bs * n * n] = visible.ravel()
    elif mode == FULL_MASK:
        start = 0
        for row, length in enumerate(lengths.tolist()):
            size = n * (length + n)
            mask[start : start + size].reshape(n, length + n)[:, length:] = visible[row]
            start += size
    else:
        raise NotImplementedError(f"tree mask mode {mode} has no CPU version")

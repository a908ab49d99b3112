"""Masks of draft trees in the layout of the attention kernel."""

import torch


def visible_keys(
    tree_mask: torch.Tensor, seq_lens: torch.Tensor, new_tokens: int
) -> torch.Tensor | None:
    """Which keys each draft token of a tree sees, in the layout of `kernels.Batch.mask`.

    Parameters
    ----------
    tree_mask : flat bool [bs, n, n], who sees whom among the ``n`` new tokens
    seq_lens : [bs] keys, the new tokens included
    new_tokens : n

    Returns
    -------
    flat bool, [n, seq_len] of each request, or None when every tree is a chain
    """
    n, bs = new_tokens, seq_lens.numel()
    tree = tree_mask[: bs * n * n].view(bs, n, n)
    if bool((tree == torch.ones(n, n, dtype=torch.bool).tril()).all()):
        return None
    lengths = seq_lens.to(torch.int64)
    sizes = lengths * n
    mask = torch.ones(int(sizes.sum()), dtype=torch.bool)
    start = torch.cumsum(sizes, 0) - sizes + lengths - n  # first draft column of the first row
    row, column = torch.arange(n)[:, None], torch.arange(n)
    mask[start[:, None, None] + row * lengths[:, None, None] + column] = tree
    return mask

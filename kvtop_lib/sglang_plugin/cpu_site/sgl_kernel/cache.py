"""Which KV slot belongs to which token: table reads, table writes and slot moves."""

import ctypes

import numpy as np
import torch

from .ragged import ragged_rows


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write newly allocated slots into the requests' rows of the table.

    ``req_to_token[req_pool_indices[b], start_offset[b]:end_offset[b]]`` takes the next
    ``end - start`` entries of ``out_cache_loc``, requests in order.

    Parameters
    ----------
    req_pool_indices : [bs] row of each request
    req_to_token : [pool, pool_len] int32, changed in place
    start_offset, end_offset : [bs] positions
    out_cache_loc : [sum(end - start)] slots
    pool_len : width of the table (unused; the tensor knows it)
    """
    rows, columns = _cells(req_pool_indices, start_offset, end_offset)
    req_to_token.numpy()[rows, columns] = out_cache_loc.numpy()[: len(rows)]


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots of positions ``start..end`` of every request, requests in order.

    The reverse of `assign_req_to_token_pool_cpu`: ``out_cache_loc`` [sum(end - start)] is
    changed in place.
    """
    rows, columns = _cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc.numpy()[: len(rows)] = req_to_token.numpy()[rows, columns]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the ``topk * steps`` slots that follow every request's committed tokens.

    Parameters
    ----------
    req_pool_indices, seq_lens : [bs]
    req_to_token : [pool, pool_len]
    out_cache_loc : [bs * topk * steps], changed in place
    """
    width = topk * speculative_num_steps
    columns = seq_lens.numpy()[:, None] + np.arange(width)
    slots = req_to_token.numpy()[req_pool_indices.numpy()[:, None], columns]
    out_cache_loc.numpy()[: slots.size] = slots.ravel()


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """One table row per draft branch: the request's prefix, then the branch's own slots.

    Branch ``t`` of a request writes its step ``s`` at position ``seq_len + t * num_steps + s``
    of the request's row (`assign_draft_cache_locs_contiguous_cpu`); attention over a branch
    must see the prefix and that branch only, contiguously.

    Returns
    -------
    [bs * topk, pool_len], the table's dtype
        Row ``b * topk + t``; columns past ``seq_len + num_steps`` are not read. A chain
        (topk 1) already lies contiguously, so its rows are the table's own.
    """
    rows = req_to_token[req_pool_indices]
    if topk == 1:
        return rows
    rows = rows.repeat_interleave(topk, dim=0)
    start = seq_lens.to(torch.int64).repeat_interleave(topk)[:, None]
    branch = torch.arange(topk).repeat(seq_lens.numel())[:, None]
    step = torch.arange(num_steps)
    own = rows.gather(1, (start + branch * num_steps + step).clamp_(max=pool_len - 1))
    return rows.scatter_(1, (start + step).clamp_(max=pool_len - 1), own)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Move KV rows in every layer's buffers: row ``tgt_loc[i]`` takes row ``src_loc[i]``.

    All sources are read before any target is written, so overlapping moves are safe.

    Parameters
    ----------
    data_ptrs : [buffers] uint64, address of row 0 of each buffer
    strides : [buffers] bytes per row
    tgt_loc, src_loc : [n] rows
    """
    # A chain's accepted tokens already lie where they belong: nothing to move.
    target, source = tgt_loc.numpy(), src_loc.numpy()
    moved = target != source
    if not moved.any():
        return
    target, source = target[moved], source[moved]
    rows = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = np.frombuffer(raw, np.uint8).reshape(rows, stride)
        buffer[target] = buffer[source]


def _cells(rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor):
    """Table row and column of every position in ``start..end`` of every request."""
    first = start.numpy()
    row, offset = ragged_rows(end.numpy() - first)
    return rows.numpy()[row], first[row] + offset

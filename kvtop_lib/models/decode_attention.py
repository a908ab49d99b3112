"""Attention of one new token per sequence over a bf16 KV cache, for batch generation on a CPU.

The library's attention is made for long queries; with one query per sequence it spends most of
its time elsewhere. This loop streams each key and value once for all query heads of its group.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(fastmath=True, nogil=True, cache=True)
def decode_attention(query, keys, values, slots, lengths, out):
    """Attend from one token per row to the first `lengths[row]` positions of its slot.

    Parameters
    ----------
    query : float32 ndarray, shape (rows, heads, dim)
        Already rotated and scaled by 1 / sqrt(dim).
    keys, values : uint16 ndarray, shape (slots, kv_heads, positions, dim)
        bf16 bit patterns of one layer.
    slots, lengths : int64 ndarray, shape (rows,)
    out : float32 ndarray, shape (rows, heads, dim)
        Result; query heads of a KV head are consecutive.
    """
    rows, heads, dim = query.shape
    group = heads // keys.shape[1]
    bits = np.zeros(dim, np.uint32)
    wide = bits.view(np.float32)
    scores = np.empty((group, keys.shape[2]), np.float32)
    for row in range(rows):
        length = lengths[row]
        for kv in range(keys.shape[1]):
            first = kv * group
            key, value = keys[slots[row], kv], values[slots[row], kv]
            for p in range(length):
                for d in range(dim):
                    bits[d] = np.uint32(key[p, d]) << np.uint32(16)
                for g in range(group):
                    total = np.float32(0.0)
                    for d in range(dim):
                        total += query[row, first + g, d] * wide[d]
                    scores[g, p] = total
            for g in range(group):
                weights, target = scores[g, :length], out[row, first + g]
                weights -= weights.max()
                np.exp(weights, weights)
                weights /= weights.sum()
                target[:] = 0
            for p in range(length):
                for d in range(dim):
                    bits[d] = np.uint32(value[p, d]) << np.uint32(16)
                for g in range(group):
                    weight = scores[g, p]
                    for d in range(dim):
                        out[row, first + g, d] += weight * wide[d]

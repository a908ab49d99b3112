"""Packed copies of SGLang's weights, made once, at the first use of a weight."""

import logging

import torch

from . import kernels

log = logging.getLogger(__name__)
_ATTRIBUTE = "_kvtop_packed"  # on the weight itself: a replaced head brings its own copy


def packed(weight: torch.Tensor) -> kernels.Packed | None:
    """The packed copy of a weight matrix [N, K]; None when the kernels cannot take it.

    A float32 weight that came from a bf16 checkpoint is stored as bf16 without loss; one that
    did not stays float32 (`kernels.pack_weight` never rounds), which is slower and said once.
    """
    known = getattr(weight, _ATTRIBUTE, None)
    if known is not None and known[0] == weight.data_ptr():
        return known[1]
    if weight.dtype != torch.float32 or weight.dim() != 2 or not weight.is_cpu:
        return None
    made = kernels.pack_weight(weight.detach())
    if made.is_float32:
        log.warning(
            "weight %s is not exactly bf16 and stays float32, twice the bytes to stream",
            tuple(weight.shape),
        )
    setattr(weight, _ATTRIBUTE, (weight.data_ptr(), made))
    return made


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``: the same bits per row for any number of rows where possible."""
    ready = packed(weight) if x.dtype == torch.float32 else None
    if ready is None:
        return torch.ops.aten.linear(x, weight, bias)
    return kernels.linear(x if x.stride(-1) == 1 else x.contiguous(), ready, bias)

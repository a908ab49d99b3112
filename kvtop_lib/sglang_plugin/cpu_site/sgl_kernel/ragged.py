"""Indices of ragged rows: the shared arithmetic of the functions in this package."""

import torch


def ragged_rows(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and offset of every element of ragged rows laid end to end.

    Parameters
    ----------
    lengths : [rows] integers, elements per row (zero allowed)

    Returns
    -------
    row, offset : [sum(lengths)] int64
        Element ``i`` is the ``offset[i]``-th one of row ``row[i]``.
    """
    lengths = lengths.to(torch.int64)
    row = torch.repeat_interleave(lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    return row, torch.arange(row.numel()) - starts[row]

"""Indices of ragged rows: the shared arithmetic of the functions in this package.

Everything here and in `cache`, `trees` and `accept` is numpy on the tensors' own memory: for the
few dozen integers of a batch its calls cost a third of torch's, and they run many times per
iteration.
"""

import numpy as np


def ragged_rows(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and offset of every element of ragged rows laid end to end.

    Parameters
    ----------
    lengths : [rows] integers, elements per row (zero allowed)

    Returns
    -------
    row, offset : [sum(lengths)] int64
        Element ``i`` is the ``offset[i]``-th one of row ``row[i]``.
    """
    ends = np.cumsum(lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) - (ends - lengths)[row]

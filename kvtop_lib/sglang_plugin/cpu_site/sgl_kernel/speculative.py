"""``sgl_kernel.speculative``: the one function that SGLang imports by this path."""

from .trees import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]

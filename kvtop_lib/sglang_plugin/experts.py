"""The experts of a mixture-of-experts layer on packed weights."""

import torch

from . import kernels


def run_experts(
    experts: list[tuple[kernels.Packed, kernels.Packed]],
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """Each expert once, on the tokens routed to it, added in the order of experts.

    That order depends on the token alone, so its sum has the same bits in any batch.

    Parameters
    ----------
    experts
        (gate and up stacked, down) of each expert.
    x
        float32 [tokens, hidden].
    weights, ids
        [tokens, topk] router weights and experts of each token.

    Returns
    -------
    float32 [tokens, hidden]
    """
    out = torch.zeros_like(x)
    order = ids.flatten().argsort(stable=True)
    tokens, scale = order // ids.shape[1], weights.flatten()[order, None]
    start = 0
    for expert, count in enumerate(torch.bincount(ids.flatten(), minlength=len(experts)).tolist()):
        if count:
            mine = slice(start, start + count)
            up, down = experts[expert]
            acted = kernels.silu_and_mul(kernels.linear(x[tokens[mine]], up))
            out.index_add_(0, tokens[mine], kernels.linear(acted, down) * scale[mine])
            start += count
    return out

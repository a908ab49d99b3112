"""What the draft layer is taught: the trunk's choice, its odds, and its next hidden state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kvtop_lib.models.eagle_head import EagleHead
from kvtop_lib.models.mtp_batches import Batch


@dataclass(frozen=True)
class LossPlan:
    """Weights of the parts of the loss.

    Attributes
    ----------
    text_share, text_weight : float
        Share of positions outside answers that are trained on, and their weight: natural text
        teaches words that answers rarely use, at a lower price than answers.
    feature_weight : float
        Of the squared error of the hidden state, relative to its mean square.
    step_weights : tuple of float
        Of draft steps 1, 2, 3; later steps only in unrolled batches.
    """

    text_share: float = 0.5
    text_weight: float = 0.4
    feature_weight: float = 0.1
    step_weights: tuple[float, ...] = (1.0, 0.5, 0.3)


def loss(
    head: EagleHead,
    batch: Batch,
    embedding: torch.Tensor,
    draft_head: torch.Tensor,
    draft_index: torch.Tensor,
    plan: LossPlan,
    steps: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Mean loss of a batch.

    Per position: cross-entropy to half the trunk's softmax over the draft vocabulary and half its
    argmax (left out when the draft vocabulary lacks it), plus the feature error.

    Parameters
    ----------
    draft_head : shape (draft vocabulary, hidden), in the dtype of the linear layers
    draft_index : int64, shape (vocabulary,)
        Index in the draft vocabulary, -1 for tokens outside it.
    steps : int
        Draft steps to unroll.
    """
    chosen = batch.answer | (
        ~batch.answer & (torch.rand(len(batch), generator=generator) < plan.text_share)
    )
    outputs = head(embedding[batch.next_token], batch.hidden, batch.lengths, steps)
    with torch.no_grad():
        at = torch.nonzero(chosen).flatten()
        target = batch.target[at]
        odds = F.linear(target.to(draft_head.dtype), draft_head).float().softmax(-1)
        label = draft_index[batch.greedy[at]]
        known = (label >= 0).float()
        odds = odds * (1 - 0.5 * known)[:, None]
        odds.scatter_add_(1, label.clamp(min=0)[:, None], 0.5 * known[:, None])
        scale = target.pow(2).mean()
        weight = torch.where(batch.answer[at], 1.0, plan.text_weight)
        depth = batch.depth()[at]
    total = torch.zeros(())
    for step, output in enumerate(outputs):
        said = output[at]
        logits = F.linear(said.to(draft_head.dtype), draft_head).float()
        entropy = -(odds * logits.log_softmax(-1)).sum(-1)
        feature = (said - target).pow(2).mean(-1) / scale
        counted = weight * (depth >= step)
        per_step = ((entropy + plan.feature_weight * feature) * counted).sum() / counted.sum()
        total = total + plan.step_weights[step] * per_step
    return total

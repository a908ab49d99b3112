"""How to train: the plan, the split of the data, the optimisers and their schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from kvtop_lib.models.eagle_head import EagleHead
from kvtop_lib.models.mtp_loss import LossPlan
from kvtop_lib.models.mtp_states import Segment
from kvtop_lib.terms import KvtopError

DOMAINS = ("agent", "other")


@dataclass(frozen=True)
class TrainPlan:
    """How long and how to train."""

    train_tokens: int = 3_200_000  # positions seen over all passes; the schedule ends there
    draft_vocabulary: int = 6144
    batch_tokens: int = 3072  # over all processes
    unroll_share: float = 0.3  # of batches that train draft steps 2 and 3 too
    muon_lr: float = 0.01  # matrices of the layer
    adamw_lr: float = 5e-4  # fc and the norm
    warmup_steps: int = 30
    seed: int = 1
    processes: int = 2
    eval_every_tokens: int = 400_000
    eval_sessions: int = 16  # per domain, for the curve
    checkpoint_every_steps: int = 100
    loss: LossPlan = field(default_factory=LossPlan)


def split(segments: Iterable[Segment]) -> tuple[list[Segment], dict[str, list[Segment]]]:
    """Training segments, and held-out segments by domain.

    Raises
    ------
    KvtopError
        When a part is empty.
    """
    usable = [s for s in segments if s.length > 2]
    train = [s for s in usable if not s.heldout]
    held = {d: [s for s in usable if s.heldout and s.domain == d] for d in DOMAINS}
    if not train or not all(held.values()):
        raise KvtopError(
            f"{len(usable)} sessions are too few to train and to hold out; extract more."
        )
    return train, held


def optimisers(head: EagleHead, plan: TrainPlan) -> list[torch.optim.Optimizer]:
    """Muon for the layer's matrices, AdamW for `fc` and the norm.

    The two halves of `fc` differ in scale by the ratio of hidden states to embeddings (16), which
    Muon's equal steps in all directions do not suit.
    """
    matrices = [p for p in head.layers.parameters() if p.ndim == 2]
    others = [*head.fc.parameters(), *(p for p in head.layers.parameters() if p.ndim != 2)]
    return [
        torch.optim.Muon(matrices, lr=plan.muon_lr, weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(others, lr=plan.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, tokens: int, plan: TrainPlan) -> float:
    """Factor of the learning rates: linear warm-up by steps, then linear to 2 % by tokens seen."""
    warm = min(1.0, (step + 1) / plan.warmup_steps)
    return warm * max(0.02, 1.0 - tokens / plan.train_tokens)

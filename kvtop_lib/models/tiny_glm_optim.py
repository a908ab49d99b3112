"""Loss and optimisers of tiny-glm: Muon for matrices, AdamW for the rest, one schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvtop_lib.models.tiny_glm_model import TinyGlm

MTP_WEIGHT = 0.3
MUON_LR, ADAM_LR, WEIGHT_DECAY = 0.02, 3e-3, 0.01
WARMUP_STEPS, DECAY_FROM = 10, 0.5  # linear decay to zero over the last half of the run


def losses(model: TinyGlm, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Trunk loss, MTP loss (nats per token) and draft-trunk agreement of (batch, length) tokens.

    Half of the MTP's target is the trunk's own distribution for the same token (acceptance is
    agreement with the trunk), half the text; the MTP loss returned is that mixture's cross-entropy.
    """
    hidden = model.hidden(tokens[:, :-1])
    trunk = model.logits(hidden)
    trunk_loss = F.cross_entropy(trunk.flatten(0, 1), tokens[:, 1:].flatten())
    draft = model.logits(model.draft_hidden(tokens[:, 1:-1], hidden[:, :-1]))
    target = trunk[:, 1:].detach()
    text_loss = F.cross_entropy(draft.flatten(0, 1), tokens[:, 2:].flatten())
    trunk_like = F.cross_entropy(draft.flatten(0, 1), target.softmax(-1).flatten(0, 1))
    agreement = (draft.argmax(-1) == target.argmax(-1)).float().mean()
    return trunk_loss, 0.5 * text_loss + 0.5 * trunk_like, agreement


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices by Newton-Schulz iteration (Jordan et al., Muon, 2024)."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix, scaled so that every matrix moves alike."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                buffer = state.setdefault("momentum", torch.zeros_like(param))
                buffer.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(buffer, group["momentum"]))
                param.mul_(1 - group["lr"] * WEIGHT_DECAY)
                scale = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def optimisers(model: TinyGlm) -> list[torch.optim.Optimizer]:
    matrices, others = [], []
    for name, param in model.named_parameters():
        hidden = param.ndim == 2 and "embed" not in name and "gate.weight" not in name
        (matrices if hidden else others).append(param)
    adam = torch.optim.AdamW(others, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    made: list[torch.optim.Optimizer] = [Muon(matrices, MUON_LR), adam]
    for optimiser in made:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return made


def set_rate(made: list[torch.optim.Optimizer], step: int, progress: float) -> None:
    """Warm up by steps, stay, decay linearly with progress (0 to 1)."""
    factor = min(1.0, (step + 1) / WARMUP_STEPS, (1 - progress) / (1 - DECAY_FROM))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["peak_lr"] * max(factor, 0.01)


def balance_experts(model: TinyGlm, rate: float = 0.002) -> None:
    """Nudge the router's choice towards equal load (auxiliary-loss-free, DeepSeek-V3)."""
    moe = model.nextn.mlp
    moe.gate.e_score_correction_bias += rate * (moe.load.mean() - moe.load).sign()

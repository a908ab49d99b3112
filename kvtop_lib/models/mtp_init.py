"""Where training starts: the draft vocabulary, a ridge regression for `fc`, the trunk's last layer.

The untrained layer then copies `fc`'s guess of the next hidden state (its o and down projections
are zero), and its attention and MLP start from features that the trunk already has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from kvtop_lib.models.eagle_head import EagleHead, HeadShape
from kvtop_lib.models.mtp_states import States

OUTPUT_COUNT = 8  # how much more a generated token counts than a predicted prompt token
RIDGE_POSITIONS = 50_000  # enough for 1153 unknowns per output
RIDGE = 1e-3  # relative to the mean diagonal of the Gram matrix


@dataclass(frozen=True)
class TrunkParts:
    """What the draft layer shares with or starts from the trunk, float32."""

    config: dict
    embedding: torch.Tensor  # (vocabulary, hidden); also the head
    last: dict[str, torch.Tensor]  # weights of the last layer and "norm", the final norm

    @classmethod
    def load(cls, folder: Path) -> TrunkParts:
        """Read them from a Hugging Face checkpoint folder."""
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        prefix = f"model.layers.{config['num_hidden_layers'] - 1}."
        with safe_open(Path(folder) / "model.safetensors", framework="pt") as weights:
            names = [name for name in weights.keys() if name.startswith(prefix)]  # noqa: SIM118
            last = {n.removeprefix(prefix): weights.get_tensor(n).float() for n in names}
            last["norm"] = weights.get_tensor("model.norm.weight").float()
            return cls(config, weights.get_tensor("model.embed_tokens.weight").float(), last)


def token_counts(states: States, vocabulary: int) -> torch.Tensor:
    """How often the trunk chose each token, float32 (vocabulary,).

    Answers count `OUTPUT_COUNT` times as much as the trunk's guesses inside prompts. The token
    that ends an answer is among them.
    """
    counts = torch.bincount(states.greedy, minlength=vocabulary).float()
    return counts + OUTPUT_COUNT * torch.bincount(
        states.tokens[states.output], minlength=vocabulary
    )


def draft_vocabulary(counts: torch.Tensor, size: int) -> torch.Tensor:
    """The `size` tokens with the highest counts, ascending ids (int64)."""
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def ridge_fc(states: States, embedding: torch.Tensor, chunk: int = 8192):
    """Weight (hidden, 2 hidden) and bias of the ridge regression of h[t+1] on (e[t+1], h[t], 1).

    Pairs lie within one session and inside answers.
    """
    rows = torch.nonzero(states.output[1:]).flatten()  # t with token t + 1 generated
    rows = rows[:: len(rows) // RIDGE_POSITIONS + 1]
    size = 2 * embedding.shape[1] + 1
    gram = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, embedding.shape[1], dtype=torch.float64)
    for part in rows.split(chunk):
        tokens, hidden = states.tokens[part + 1], states.hidden[part].float()
        x = torch.cat((embedding[tokens], hidden, torch.ones(len(part), 1)), -1)
        gram += (x.T @ x).double()
        cross += (x.T @ states.hidden[part + 1].float()).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, cross).float()
    return solution[:-1].T.contiguous(), solution[-1]


def initial_head(states: States, trunk: TrunkParts) -> EagleHead:
    """The draft layer before training, from training states."""
    head = EagleHead(HeadShape.of(trunk.config))
    weight, bias = ridge_fc(states, trunk.embedding)
    head.fc.weight.data, head.fc.bias.data = weight, bias
    layer, last = head.layers[0], trunk.last
    # fc predicts the hidden state after the final norm; undo that norm's weight, apply the layer's
    norm = last["norm"]  # some of its weights are negative
    scale = norm.sign() * norm.abs().clamp(min=0.1 * float(norm.abs().median()))
    sample = states.hidden[:: max(1, len(states) // 4096)].float()
    for name in ("q_proj", "k_proj", "v_proj"):
        folded = last[f"self_attn.{name}.weight"] * last["input_layernorm.weight"] / scale
        layer.self_attn[name].weight.data = folded
    rms = float((sample**2).mean().sqrt())
    folded = last["post_attention_layernorm.weight"] * rms / scale
    layer.post_attention_layernorm.weight.data = folded
    for name in ("gate_proj", "up_proj"):
        layer.mlp[name].weight.data = last[f"mlp.{name}.weight"].clone()
    layer.self_attn["o_proj"].weight.data.zero_()
    layer.mlp["down_proj"].weight.data.zero_()
    return head

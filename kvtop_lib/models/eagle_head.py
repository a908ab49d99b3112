"""The draft layer as SGLang's `LlamaForCausalLMEagle` computes it, for training.

At position t it sees the embedding of token t + 1 and the trunk's hidden state at t (after the
final norm), joined by `fc` (embedding half first, with bias). One Llama layer follows, without
`input_layernorm` and without a final norm; its output goes straight to the trunk's head and
predicts the trunk's choice after t + 1. Later steps of a draft chain see the layer's own output
in place of the trunk's hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from kvtop_lib.models.trunk import rotary_tables, rotate


@dataclass(frozen=True)
class HeadShape:
    """Sizes of the draft layer; those of the trunk's layers."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    dim: int
    rope_base: float
    eps: float

    @classmethod
    def of(cls, config: dict) -> HeadShape:
        """From the trunk's `config.json`."""
        base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        return cls(
            config["hidden_size"], config["intermediate_size"], config["num_attention_heads"],
            config["num_key_value_heads"], config["head_dim"], base, config["rms_norm_eps"],
        )  # fmt: skip


class Layer(nn.Module):
    """Weights of the Llama layer, under the names of a checkpoint."""

    def __init__(self, shape: HeadShape):
        super().__init__()
        hidden, q, kv = shape.hidden, shape.heads * shape.dim, shape.kv_heads * shape.dim

        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        self.self_attn = nn.ModuleDict(
            {
                "q_proj": linear(hidden, q),
                "k_proj": linear(hidden, kv),
                "v_proj": linear(hidden, kv),
                "o_proj": linear(q, hidden),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": linear(hidden, shape.intermediate),
                "up_proj": linear(hidden, shape.intermediate),
                "down_proj": linear(shape.intermediate, hidden),
            }
        )
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=shape.eps)


class EagleHead(nn.Module):
    """The draft layer over packed sessions."""

    def __init__(self, shape: HeadShape, positions: int = 1024):
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape)])
        cos, sin = rotary_tables(positions, shape.dim, shape.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, lengths: list[int], steps: int = 1
    ) -> list[torch.Tensor]:
        """Outputs of the first `steps` draft steps at every position.

        Parameters
        ----------
        embedded : float32, shape (n, hidden)
            Embedding of the *next* token of each position.
        hidden : float32, shape (n, hidden)
            Trunk's hidden state of each position.
        lengths : list of int
            Positions of each session; they sum to n. Attention stays within a session.

        Returns
        -------
        list of float32 tensors, shape (n, hidden)
            Item s - 1 at position t: output of draft step s whose last input is token t + 1. It
            saw trunk states up to t - s + 1 and its own outputs after that. The first s - 1
            positions of a session have no such history and repeat the trunk's state.
        """
        outputs: list[torch.Tensor] = []
        past: list[tuple[torch.Tensor, torch.Tensor]] = []
        positions = torch.cat([torch.arange(n) for n in lengths])
        state = hidden
        for step in range(1, steps + 1):
            if step > 1:
                state = torch.where((positions < step - 1)[:, None], hidden, _shift(outputs[-1]))
            outputs.append(self._step(embedded, state, positions, lengths, past))
        return outputs

    def _step(self, embedded, state, positions, lengths, past):
        shape, layer = self.shape, self.layers[0]
        x = self.fc(torch.cat((embedded, state), -1))
        attention = layer.self_attn

        def heads(name):
            return attention[name](x).float().unflatten(-1, (-1, shape.dim))

        cos, sin = self.cos[positions], self.sin[positions]
        q, k = rotate(heads("q_proj"), cos, sin), rotate(heads("k_proj"), cos, sin)
        past.append((k, heads("v_proj")))
        bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
        mixed = [
            chain_attention(q[a:b], [(k[a:b], v[a:b]) for k, v in past])
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]
        x = x + attention["o_proj"](torch.cat(mixed).flatten(1))
        normed = layer.post_attention_layernorm(x.float())
        mlp = layer.mlp
        return (
            x + mlp["down_proj"](F.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed))
        ).float()


def _shift(x: torch.Tensor) -> torch.Tensor:
    """Row t becomes row t - 1 (row 0 is unused)."""
    return torch.cat((x[:1], x[:-1]))


def chain_attention(q: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention of draft step s = len(past) within one session.

    A chain that ends at position t has trunk-made keys (step 1) up to t - s + 1 and one key of
    each later step i at t - s + i, as the draft KV cache has when it is served.

    Parameters
    ----------
    q : shape (n, heads, dim)
    past : list of (keys, values), each (n, kv_heads, dim)
        Of steps 1 ... s.

    Returns
    -------
    Tensor, shape (n, heads, dim). Rows before the chain's history (t < s - 1) see what exists.
    """
    n, heads, dim = q.shape
    steps = len(past)
    groups = heads // past[0][0].shape[1]
    pairs = [(k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)) for k, v in past]
    at = torch.arange(n)
    if steps == 1:
        q, k, v = (t.transpose(0, 1)[None] for t in (q, *pairs[0]))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
    scores = torch.einsum("qhd,khd->hqk", q, pairs[0][0])
    hidden_keys = at[None, :] > (at[:, None] - steps + 1).clamp(min=0)
    scores = scores.masked_fill(hidden_keys, float("-inf"))
    own = [(at - steps + i).clamp(min=0) for i in range(2, steps + 1)]
    extra = [
        torch.einsum("qhd,qhd->hq", q, k[rows]) for (k, _), rows in zip(pairs[1:], own, strict=True)
    ]
    weights = (torch.cat((scores, torch.stack(extra, -1)), -1) * dim**-0.5).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights[..., :n], pairs[0][1])
    for i, ((_, v), rows) in enumerate(zip(pairs[1:], own, strict=True)):
        out = out + weights[..., n + i].transpose(0, 1)[..., None] * v[rows]
    return out

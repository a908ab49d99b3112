"""GLM-4-MoE in plain torch, with the NextN (MTP) layer: the model that `tiny_glm_train` trains.

Parameter names are those of the Hugging Face checkpoint, so exporting is renaming nothing.
The forward pass follows SGLang 0.5.23 (`glm4_moe.py`, `glm4_moe_nextn.py`) and, for the trunk,
transformers' `Glm4MoeForCausalLM`; tests hold it to both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TinyGlmConfig:
    """Shape of the model; field names are those of the checkpoint's config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 576
    moe_intermediate_size: int = 160
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.5
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    n_routed_experts: int = 4
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    max_position_embeddings: int = 4096

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary_tables(config: TinyGlmConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of shape (length, rotary_dim), neox style (the halves are repeated)."""
    steps = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    angles = torch.arange(length)[:, None].float() / config.rope_theta**steps
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on the first `rotary_dim` columns of each head; the rest passes through."""
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


class Attention(nn.Module):
    def __init__(self, config: TinyGlmConfig):
        super().__init__()
        self.config, size = config, config.hidden_size
        self.q_proj = nn.Linear(size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(size, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            proj(x).view(batch, length, -1, self.config.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, size: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid scores; the correction bias takes part in the choice, not in the weights."""

    def __init__(self, config: TinyGlmConfig):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> weights (..., experts), zero for the experts not chosen, sum 1."""
        scores = F.linear(x, self.weight).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices
        weights = scores * torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        return weights / weights.sum(-1, keepdim=True)


class MoE(nn.Module):
    """Every expert sees every token, weighted by the router: exact, and cheap at four experts."""

    def __init__(self, config: TinyGlmConfig):
        super().__init__()
        size, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = Router(config)
        self.experts = nn.ModuleList(MLP(size, inner) for _ in range(config.n_routed_experts))
        self.shared_experts = MLP(size, inner * config.n_shared_experts)
        self.load = torch.zeros(config.n_routed_experts)  # share of tokens, of the last forward

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x)
        self.load = (weights.detach() > 0).float().flatten(0, -2).mean(0)
        out = self.shared_experts(x)
        for index, expert in enumerate(self.experts):
            out = out + weights[..., index : index + 1] * expert(x)
        return out


class DecoderLayer(nn.Module):
    def __init__(self, config: TinyGlmConfig, sparse: bool = False):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MoE(config) if sparse else MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class NextN(DecoderLayer):
    """The MTP layer: always MoE, also over a dense trunk. Embedding and head are the trunk's."""

    def __init__(self, config: TinyGlmConfig):
        super().__init__(config, sparse=True)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(config.hidden_size, config.rms_norm_eps)})

    def forward(self, embedding: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Row i: embedding of token i+1 and hidden state i; its output predicts token i+2."""
        x = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], -1))
        return self.shared_head["norm"](super().forward(x, cos, sin))


class TinyGlm(nn.Module):
    """Trunk of `depth` layers (all by default) and one NextN layer; embedding and head tied."""

    def __init__(self, config: TinyGlmConfig, depth: int | None = None):
        super().__init__()
        self.config = config
        depth = config.num_hidden_layers if depth is None else depth
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(depth))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.nextn = NextN(config)
        self.cos, self.sin = rotary_tables(config, config.max_position_embeddings)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Trunk states after the final norm, (batch, length, hidden), of (batch, length) tokens."""
        x, length = self.embed_tokens(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.norm(x)

    def draft_hidden(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """NextN states; row i takes tokens[:, i] (one ahead) and hidden[:, i], at position i."""
        length = tokens.shape[1]
        embedding = self.embed_tokens(tokens)
        return self.nextn(embedding, hidden, self.cos[:length], self.sin[:length])

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)

"""What tiny-glm would draft and accept, without an engine: the known truth for served acceptance.

The chain follows SGLang's NEXTN with topk 1: the first draft comes from trunk states at all
committed positions, each later one feeds the NextN output and the draft token back; entries of
the draft KV that came from drafts are rewritten from trunk states after each verification.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvtop_lib.models.tiny_glm_model import NextN, TinyGlm, rotate


@dataclass(frozen=True)
class Acceptance:
    """Histogram of accepted drafts per verify step of one output; index = drafts accepted."""

    histogram: tuple[int, ...]

    @property
    def verify_steps(self) -> int:
        return sum(self.histogram)

    @property
    def accept_len(self) -> float:
        """1 + accepted drafts / verify steps."""
        accepted = sum(drafts * count for drafts, count in enumerate(self.histogram))
        return 1 + accepted / max(1, self.verify_steps)


def _chain_layer(
    layer: NextN, x: Tensor, kv: list[tuple[Tensor, Tensor]], cos: Tensor, sin: Tensor
) -> Tensor:
    """One draft step for every row at once: (rows, hidden) -> (rows, hidden) after the last norm.

    `kv[0]` holds keys and values from trunk states (heads, rows, dim): row r sees entries 0..r.
    `kv[1:]` are the chain's own earlier steps, of which row r sees row r only. The step appends
    its own. `cos`/`sin` are at the position of the step, row by row.
    """
    attention, normed = layer.self_attn, layer.input_layernorm(x)
    dim, groups = attention.config.head_dim, attention.q_proj.out_features
    groups //= attention.k_proj.out_features
    q, k, v = (
        proj(normed).view(len(x), -1, dim).transpose(0, 1)
        for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    kv.append((rotate(attention.k_norm(k), cos, sin), v))
    q = rotate(attention.q_norm(q), cos, sin) / dim**0.5
    keys, values = ([pair[i].repeat_interleave(groups, dim=0) for pair in kv] for i in range(2))
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    base = (q @ keys[0].mT).masked_fill(~causal, float("-inf"))
    weights = torch.cat([base, *own], -1).softmax(-1)
    out = weights[..., : len(x)] @ values[0]
    for i, value in enumerate(values[1:]):
        out = out + weights[..., len(x) + i, None] * value
    x = x + attention.o_proj(out.transpose(0, 1).reshape(len(x), -1))
    return layer.shared_head["norm"](x + layer.mlp(layer.post_attention_layernorm(x)))


@torch.no_grad()
def draft_chains(model: TinyGlm, tokens: Tensor, depth: int) -> Tensor:
    """Greedy drafts (rows, depth): row r drafts tokens r+2, r+3, ... given tokens 0..r+1."""
    rows, layer = len(tokens) - 1, model.nextn
    hidden = model.hidden(tokens[None, :-1])
    state = model.draft_hidden(tokens[None, 1:], hidden)[0]
    x = layer.eh_proj(
        torch.cat([layer.enorm(model.embed_tokens(tokens[1:])), layer.hnorm(hidden[0])], -1)
    )
    attention, normed = layer.self_attn, layer.input_layernorm(x)
    k, v = (
        proj(normed).view(rows, -1, attention.config.head_dim).transpose(0, 1)
        for proj in (attention.k_proj, attention.v_proj)
    )
    kv = [(rotate(attention.k_norm(k), model.cos[:rows], model.sin[:rows]), v)]
    drafts = [model.logits(state).argmax(-1)]
    for step in range(1, depth):
        embedding = model.embed_tokens(drafts[-1])
        x = layer.eh_proj(torch.cat([layer.enorm(embedding), layer.hnorm(state)], -1))
        at = slice(step, step + rows)
        state = _chain_layer(layer, x, kv, model.cos[at], model.sin[at])
        drafts.append(model.logits(state).argmax(-1))
    return torch.stack(drafts, -1)


def count_accepted(
    drafts: Tensor, tokens: Tensor, prompt_tokens: int, beyond: int = 0
) -> Acceptance:
    """Walk along a greedy output and count accepted drafts per verify step.

    `tokens` is prompt + output, whose first token comes from the prefill; `drafts` (rows, depth)
    as `draft_chains` returns them. The last `beyond` tokens are what greedy decoding would have
    said after the output: no step starts there, but a step may accept drafts there, which is how
    SGLang counts. With 0, a step that reaches past the end counts the drafts that fit.
    """
    depth = drafts.shape[1]
    counts, known = [0] * (depth + 1), prompt_tokens + 1
    while known < len(tokens) - beyond:
        ahead = tokens[known : known + depth]
        matches = (drafts[known - 2, : len(ahead)] == ahead).int()
        accepted = int(matches.cumprod(0).sum())
        counts[accepted] += 1
        known += accepted + 1
    return Acceptance(tuple(counts))


def simulate(
    model: TinyGlm, tokens: Tensor, prompt_tokens: int, depth: int, beyond: int = 0
) -> Acceptance:
    """Acceptance of a greedy output: `tokens` (int64) = prompt + output, at `depth` drafts."""
    return count_accepted(draft_chains(model, tokens, depth), tokens, prompt_tokens, beyond)

"""A Llama-layout draft layer of few numbers: its weights, a prepared stack, and float64 truth."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kvtop_lib.sglang_plugin import kernels

HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, DRAFT_VOCAB = 32, 4, 2, 8, 40, 60, 25
Q, KV, SLOTS, WIDTH, EPS = HEADS * DIM, KV_HEADS * DIM, 600, 30, 1e-5


def draw(*shape, seed, scale=1.0):
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return numbers.bfloat16().float()


W = {
    "qkv": draw(Q + 2 * KV, HIDDEN, seed=1, scale=0.3),
    "o": draw(HIDDEN, Q, seed=2, scale=0.3),
    "gate_up": draw(2 * FFN, HIDDEN, seed=3, scale=0.3),
    "down": draw(HIDDEN, FFN, seed=4, scale=0.3),
    "norm": draw(HIDDEN, seed=5),
    "fc": draw(HIDDEN, 2 * HIDDEN, seed=6, scale=0.3),
    "fc_bias": draw(HIDDEN, seed=7),
    "embedding": draw(VOCAB, HIDDEN, seed=8),
    "head": draw(DRAFT_VOCAB, HIDDEN, seed=9),
}
TOKEN_MAP = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(10))[:DRAFT_VOCAB]
ANGLES = torch.outer(torch.arange(64.0), 0.5 ** torch.arange(DIM / 2))
COS_SIN = torch.cat((ANGLES.cos(), ANGLES.sin()), dim=1)


def draft_worker(requests, generator, **more):
    """A worker with one draft layer and slots of `WIDTH` positions per request; its KV before."""
    pools = torch.randn(2, SLOTS, KV_HEADS, DIM, generator=generator)
    table = torch.randperm(SLOTS, generator=generator)[: requests * WIDTH].view(requests, WIDTH)
    layer = kernels.LlamaLayer(
        None,
        *(kernels.pack_weight(W[name]) for name in ("qkv", "o")),
        W["norm"],
        *(kernels.pack_weight(W[name]) for name in ("gate_up", "down")),
        *(held := [pool.clone() for pool in pools]),
    )
    model = SimpleNamespace(
        fc=lambda x: torch.nn.functional.linear(x, W["fc"], W["fc_bias"]),
        embed_tokens=lambda ids: W["embedding"][ids],
        stack=kernels.LlamaStack([layer], None, COS_SIN, HEADS, DIM, EPS),
    )
    head = SimpleNamespace(weight=W["head"].clone())
    runner = SimpleNamespace(
        model=SimpleNamespace(model=model, lm_head=head),
        token_to_kv_pool=SimpleNamespace(held=held),
        canary_manager=None,
    )
    pool = SimpleNamespace(req_to_token=table.int())
    worker = SimpleNamespace(
        topk=1, hot_token_id=TOKEN_MAP, req_to_token_pool=pool, draft_runner=runner, **more
    )
    return worker, pools


def rotate(x, position):
    """Neox rotation of [heads, DIM] in float64."""
    cos, sin = COS_SIN[position].double().chunk(2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def slow_step(token, state, position, keys, values):
    """Hidden state of the layer in float64; its key and value are added to `keys`, `values`."""
    w = {name: value.double() for name, value in W.items()}
    x = w["fc"] @ torch.cat((w["embedding"][token], state.double())) + w["fc_bias"]
    q, k, v = (w["qkv"] @ x).split([Q, KV, KV])
    keys.append(rotate(k.view(KV_HEADS, DIM), position))
    values.append(v.view(KV_HEADS, DIM))
    q, seen = rotate(q.view(HEADS, DIM), position), []
    for h in range(HEADS):
        g = h * KV_HEADS // HEADS
        weights = torch.stack([q[h] @ key[g] for key in keys]) * DIM**-0.5
        seen.append(weights.softmax(0) @ torch.stack([value[g] for value in values]))
    x = x + w["o"] @ torch.cat(seen)
    normed = x / (x.pow(2).mean() + EPS).sqrt() * w["norm"]
    gate, up = (w["gate_up"] @ normed).chunk(2)
    return x + w["down"] @ (gate / (1 + (-gate).exp()) * up)


def slow_draft(hidden):
    """The draft's token, in its own vocabulary."""
    return int((W["head"].double() @ hidden.double()).argmax())

"""The draft loop of the CPU runner against one float64 layer, draft by draft."""

from types import SimpleNamespace

import pytest
import torch

from kvtop_lib.sglang_plugin import draft_runners, kernels

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


def setup(lengths, steps):
    """A worker with one draft layer, and the batch that SGLang would hand over."""
    bs, generator = len(lengths), torch.Generator().manual_seed(sum(lengths))
    pools = torch.randn(2, SLOTS, KV_HEADS, DIM, generator=generator)
    table = torch.randperm(SLOTS, generator=generator)[: bs * WIDTH].view(bs, WIDTH).int()
    layer = kernels.LlamaLayer(
        None,
        *(kernels.pack_weight(W[name]) for name in ("qkv", "o")),
        W["norm"],
        *(kernels.pack_weight(W[name]) for name in ("gate_up", "down")),
        *(pool.clone() for pool in pools),
    )
    stack = kernels.LlamaStack([layer], None, COS_SIN, HEADS, DIM, EPS)
    model = SimpleNamespace(
        fc=lambda x: torch.nn.functional.linear(x, W["fc"], W["fc_bias"]),
        embed_tokens=lambda ids: W["embedding"][ids],
        stack=stack,
    )
    head = SimpleNamespace(weight=W["head"].clone())
    worker = SimpleNamespace(
        topk=1,
        speculative_num_steps=steps,
        hot_token_id=TOKEN_MAP,
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        draft_runner=SimpleNamespace(
            model=SimpleNamespace(model=model, lm_head=head), token_to_kv_pool=object()
        ),
        _topk1_parents_prealloc=torch.arange(-1, steps - 1).expand(64, -1),
        _topk1_score_indices_prealloc=torch.arange(steps).expand(64, -1),
    )
    seq_lens = torch.tensor(lengths)
    slots = [table[b, n : n + steps].long() for b, n in enumerate(lengths)]
    batch = SimpleNamespace(
        batch_size=bs,
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        out_cache_loc=torch.cat(slots),
        positions=seq_lens.clone(),
        seq_lens=seq_lens,
        req_pool_indices=torch.arange(bs),
        spec_info=SimpleNamespace(
            topk_index=torch.randint(DRAFT_VOCAB, (bs, 1), generator=generator),
            hidden_states=torch.randn(bs, HIDDEN, generator=generator),
        ),
    )
    return worker, batch, pools


def rotate(x, position):
    """Neox rotation of [heads, DIM] in float64."""
    cos, sin = COS_SIN[position].double().chunk(2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def slow_chain(row, length, pools, first, hidden, steps):
    """Tokens that one request's draft layer proposes, in float64."""
    w = {name: value.double() for name, value in W.items()}
    keys, values = ([p.double()[s] for s in row[:length]] for p in pools)
    tokens, hidden = [int(TOKEN_MAP[first])], hidden.double()
    for step in range(steps - 1):
        x = w["fc"] @ torch.cat((w["embedding"][tokens[-1]], hidden)) + w["fc_bias"]
        q, k, v = (w["qkv"] @ x).split([Q, KV, KV])
        keys.append(rotate(k.view(KV_HEADS, DIM), length + step))
        values.append(v.view(KV_HEADS, DIM))
        q, seen = rotate(q.view(HEADS, DIM), length + step), []
        for h in range(HEADS):
            g = h * KV_HEADS // HEADS
            weights = torch.stack([q[h] @ key[g] for key in keys]) * DIM**-0.5
            seen.append(weights.softmax(0) @ torch.stack([value[g] for value in values]))
        x = x + w["o"] @ torch.cat(seen)
        normed = x / (x.pow(2).mean() + EPS).sqrt() * w["norm"]
        gate, up = (w["gate_up"] @ normed).chunk(2)
        hidden = x + w["down"] @ (gate / (1 + (-gate).exp()) * up)
        tokens.append(int(TOKEN_MAP[(w["head"] @ hidden).argmax()]))
    return tokens


@pytest.fixture(autouse=True)
def prepared_stack(monkeypatch):
    monkeypatch.setattr(draft_runners, "stack_of", lambda model, pool: model.stack)


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("lengths", [[7], [1, 20, 3, 12, 9]])
def test_chain_is_that_of_the_layer(lengths, steps):
    worker, batch, pools = setup(lengths, steps)
    runner = draft_runners.CpuDraftRunner(worker)
    assert runner.can_run_graph(batch)
    parents, scores, tokens, probs = runner.execute(batch)
    table, spec = worker.req_to_token_pool.req_to_token.long(), batch.spec_info
    expected = [
        slow_chain(table[b], n, pools, spec.topk_index[b, 0], spec.hidden_states[b], steps)
        for b, n in enumerate(lengths)
    ]
    assert tokens.tolist() == expected
    assert parents.shape == scores.shape == (len(lengths), steps) and probs is None


@pytest.mark.parametrize(
    "change",
    [
        lambda worker, batch: setattr(worker, "topk", 4),
        lambda worker, batch: setattr(worker, "speculative_num_steps", 1),
        lambda worker, batch: setattr(batch, "batch_size", 65),
        lambda worker, batch: setattr(batch.forward_mode, "is_idle", lambda: True),
        lambda worker, batch: delattr(worker.draft_runner.model.model, "fc"),
        lambda worker, batch: setattr(worker.draft_runner.model.model, "stack", None),
    ],
    ids=["tree", "one step", "large batch", "idle", "not EAGLE", "not one kernel"],
)
def test_other_drafts_are_left_to_sglang(change):
    worker, batch, _ = setup([5, 6], 3)
    change(worker, batch)
    assert not draft_runners.CpuDraftRunner(worker).can_run_graph(batch)

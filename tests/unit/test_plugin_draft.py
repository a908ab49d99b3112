"""The draft loop of the CPU runner against one float64 layer, draft by draft."""

from types import SimpleNamespace

import pytest
import torch
from draft_help import DRAFT_VOCAB, HIDDEN, TOKEN_MAP, draft_worker, slow_draft, slow_step

from kvtop_lib.sglang_plugin import draft_runners


def setup(lengths, steps):
    """A worker with one draft layer, and the batch that SGLang would hand over."""
    bs, generator = len(lengths), torch.Generator().manual_seed(sum(lengths))
    worker, pools = draft_worker(
        bs,
        generator,
        speculative_num_steps=steps,
        _topk1_parents_prealloc=torch.arange(-1, steps - 1).expand(64, -1),
        _topk1_score_indices_prealloc=torch.arange(steps).expand(64, -1),
    )
    table, seq_lens = worker.req_to_token_pool.req_to_token, torch.tensor(lengths)
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


def slow_chain(row, length, pools, first, hidden, steps):
    """Tokens that one request's draft layer proposes, in float64."""
    keys, values = ([p.double()[s] for s in row[:length]] for p in pools)
    tokens = [int(TOKEN_MAP[first])]
    for step in range(steps - 1):
        hidden = slow_step(tokens[-1], hidden, length + step, keys, values)
        tokens.append(int(TOKEN_MAP[slow_draft(hidden)]))
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

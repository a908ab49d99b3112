"""The draft layer's pass after a verification against one float64 layer, row by row."""

from types import SimpleNamespace

import pytest
import torch
from draft_help import HIDDEN, VOCAB, W, draft_worker, slow_draft, slow_step

from kvtop_lib.sglang_plugin import draft_extend
from kvtop_lib.sglang_plugin.drafts.heads import Heads


def setup(lengths, accepted, width):
    """A worker, the batch after its verification, the result of that, and the KV before."""
    bs, generator = len(lengths), torch.Generator().manual_seed(sum(lengths) + width)
    worker, pools = draft_worker(bs, generator, speculative_num_draft_tokens=width)
    table = worker.req_to_token_pool.req_to_token
    batch = SimpleNamespace(
        reqs=[SimpleNamespace(rid=f"r{b}") for b in range(bs)],
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.tensor(lengths),
        req_pool_indices=torch.arange(bs),
        out_cache_loc=torch.cat([table[b, n : n + width].long() for b, n in enumerate(lengths)]),
    )
    result = SimpleNamespace(
        accept_lens=torch.tensor(accepted, dtype=torch.int32),
        next_token_ids=torch.randint(VOCAB, (bs * width,), generator=generator).int(),
        logits_output=SimpleNamespace(
            hidden_states=torch.randn(bs * width, HIDDEN, generator=generator)
        ),
        next_draft_input=SimpleNamespace(),
    )
    return worker, batch, result, pools


@pytest.fixture(autouse=True)
def sglang(monkeypatch):
    """A prepared stack, and what SGLang's context says of sampled drafts."""
    context = SimpleNamespace(speculative_use_rejection_sampling=False)
    monkeypatch.setattr(draft_extend, "stack_of", lambda model, pool: model.stack)
    monkeypatch.setattr("sglang.srt.runtime_context.get_spec", lambda: context)
    return context


def untouched(*args, **kwargs):
    raise AssertionError("SGLang's own pass ran")


CASES = pytest.mark.parametrize(
    ("lengths", "accepted", "width"),
    [([7], [1], 1), ([7, 20, 3], [1, 1, 1], 1), ([4], [3], 4), ([5, 1, 20, 9], [1, 4, 2, 3], 4)],
)


@CASES
def test_the_accepted_rows_are_those_of_the_layer(lengths, accepted, width):
    worker, batch, result, before = setup(lengths, accepted, width)
    table = worker.req_to_token_pool.req_to_token.long()
    held = worker.draft_runner.token_to_kv_pool.held
    assert draft_extend.extend(untouched, worker, batch, result, kv_loc_plan=None) is None
    written, first, states = set(), [], []
    for b, (length, count) in enumerate(zip(lengths, accepted, strict=True)):
        keys, values = ([p.double()[s] for s in table[b, :length]] for p in before)
        for i in range(count):
            row = b * width + i
            token, state = result.next_token_ids[row], result.logits_output.hidden_states[row]
            hidden = slow_step(token, state, length + i, keys, values)
            slot = int(table[b, length + i])
            written.add(slot)
            for pool, truth in zip(held, (keys, values), strict=True):
                torch.testing.assert_close(pool[slot].double(), truth[-1], rtol=1e-4, atol=1e-4)
        states.append(hidden)
        first.append([slow_draft(hidden)])
    following = result.next_draft_input
    assert following.topk_index.tolist() == first
    assert following.topk_p.tolist() == [[1.0]] * len(lengths)
    torch.testing.assert_close(
        following.hidden_states.double(), torch.stack(states), rtol=1e-4, atol=1e-4
    )
    others = [s for s in range(len(before[0])) if s not in written]  # rejected rows among them
    assert all(torch.equal(new[others], old[others]) for new, old in zip(held, before, strict=True))


def with_heads(worker):
    """Heads that count what they are asked for."""
    calls = []

    def compute(hidden, head):
        calls.append(len(hidden))
        return hidden @ head.weight.T

    worker.draft_runner.model.logits_processor = SimpleNamespace(
        _get_logits=lambda hidden, *_: compute(hidden, worker.draft_runner.model.lm_head),
        _compute_lm_head=compute,
        vocab_size=VOCAB,
    )
    return Heads(worker), calls


def test_a_head_that_was_put_off_drafts_the_same_later():
    wanted = setup([7, 20, 3], [1, 1, 1], 1)
    draft_extend.extend(untouched, *wanted[:3])
    worker, batch, result, _ = setup([7, 20, 3], [1, 1, 1], 1)
    heads, calls = with_heads(worker)
    with heads.at(1, batch.reqs):
        draft_extend.extend(untouched, worker, batch, result)
    following = result.next_draft_input
    assert following.topk_index.tolist() == [[0]] * 3 and not calls
    assert torch.equal(following.hidden_states, wanted[2].next_draft_input.hidden_states)
    batch.spec_info = following
    assert heads.catch_up(batch) == 3
    assert torch.equal(following.topk_index, wanted[2].next_draft_input.topk_index)


def test_heads_are_put_off_at_width_1_only():
    worker, batch, result, _ = setup([7, 20], [2, 1], 2)
    heads, _ = with_heads(worker)
    with heads.at(2, batch.reqs):
        draft_extend.extend(untouched, worker, batch, result)
    assert heads.waiting == set() and result.next_draft_input.topk_index.any()


@pytest.mark.parametrize(
    "change",
    [
        lambda w, b, spec: setattr(w, "topk", 4),
        lambda w, b, spec: setattr(b.forward_mode, "is_idle", lambda: True),
        lambda w, b, spec: setattr(spec, "speculative_use_rejection_sampling", True),
        lambda w, b, spec: setattr(w.draft_runner, "canary_manager", object()),
        lambda w, b, spec: delattr(w.draft_runner.model.model, "fc"),
        lambda w, b, spec: delattr(w.draft_runner.model, "lm_head"),
        lambda w, b, spec: setattr(w.draft_runner.model.model, "stack", None),
        lambda w, b, spec: setattr(
            w.draft_runner.model.lm_head, "weight", W["head"].bfloat16()
        ),
    ],
    ids=["tree", "idle", "sampled", "canary", "not EAGLE", "no head", "not one kernel", "bf16"],
)  # fmt: skip
def test_other_passes_are_left_to_sglang(change, sglang):
    worker, batch, result, _ = setup([5, 6], [1, 2], 2)
    change(worker, batch, sglang)
    asked = []
    draft_extend.extend(lambda *args, **more: asked.append((args, more)), worker, batch, result,
                        kv_loc_plan=3)  # fmt: skip
    assert asked == [((worker, batch, result), {"kv_loc_plan": 3})]
    assert vars(result.next_draft_input) == {}


def request(name):
    return SimpleNamespace(rid=name)


def asked_for(names):
    """A batch whose first drafts are 7 until worked out."""
    rows = torch.full((len(names), 1), 7)
    return SimpleNamespace(
        reqs=[request(n) for n in names], spec_info=SimpleNamespace(topk_index=rows)
    )


def test_whose_heads_wait_as_requests_come_and_go():
    worker, *_ = setup([5], [1], 1)
    heads, calls = with_heads(worker)
    processor, best = worker.draft_runner.model.logits_processor, W["head"] / W["head"].norm()
    a, b, c = (best[i] * 9 for i in range(3))  # states of requests

    def iteration(width, **states):
        with heads.at(width, [request(n) for n in states]):
            return processor._get_logits(torch.stack(list(states.values())), None)

    assert iteration(1, a=a, b=b).shape == (2, 1) and not calls
    assert heads.waiting == {"a", "b"}
    iteration(1, b=b)  # a has ended
    assert heads.waiting == {"b"}
    heads.forget([request("c")])  # its prefill brings a first draft
    batch = asked_for(["c", "b"])
    assert heads.catch_up(batch) == 1 and calls == [1]
    assert batch.spec_info.topk_index.tolist() == [[7], [slow_draft(b)]]
    assert iteration(2, c=c, b=b).shape == (2, len(W["head"]))  # heads run again
    assert heads.waiting == set() and heads.catch_up(asked_for(["c", "b"])) == 0
    iteration(1, b=b, c=c)
    heads.forget([request("b")])  # retracted: its prompt is prefilled anew
    assert heads.waiting == {"c"}


def test_an_iteration_that_fails_leaves_the_head_on():
    worker, batch, *_ = setup([5], [1], 1)
    heads, calls = with_heads(worker)
    with pytest.raises(RuntimeError), heads.at(1, batch.reqs):
        raise RuntimeError
    assert not heads.off and heads.waiting == set()

"""The draft layer against slow references, and that training is resumable and learns."""

from __future__ import annotations

import json
import math
from copy import deepcopy

import pytest
import torch
from safetensors.torch import save_file

from kvtop_lib.models.eagle_head import EagleHead, HeadShape, chain_attention
from kvtop_lib.models.mtp_batches import batches, make_batch
from kvtop_lib.models.mtp_eval import Shared, accepted_lengths, correct
from kvtop_lib.models.mtp_init import draft_vocabulary, ridge_fc, token_counts
from kvtop_lib.models.mtp_plan import TrainPlan, rate, split
from kvtop_lib.models.mtp_states import Segment, States
from kvtop_lib.models.mtp_trainer import Trainer
from kvtop_lib.terms import KvtopError

SHAPE = HeadShape(24, 40, 6, 2, 8, 1e5, 1e-5)
CONFIG = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1e5,
    "rms_norm_eps": 1e-5, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def random_head(seed=0):
    torch.manual_seed(seed)
    head = EagleHead(SHAPE)
    for parameter in head.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return head


def test_first_step_equals_hugging_faces_layer_without_input_norm():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    head = random_head()
    config = LlamaConfig(**CONFIG, attn_implementation="eager")
    layer = LlamaDecoderLayer(config, 0)
    layer.load_state_dict(head.layers[0].state_dict(), strict=False)
    layer.input_layernorm = torch.nn.Identity()
    lengths = [5, 3]
    embedded, hidden = torch.randn(2, 8, 24)
    (got,) = head(embedded, hidden, lengths)
    joined = head.fc(torch.cat((embedded, hidden), -1))
    for rows in (slice(0, 5), slice(5, 8)):
        x = joined[rows][None]
        n = x.shape[1]
        rope = LlamaRotaryEmbedding(config)(x, torch.arange(n)[None])
        mask = torch.full((n, n), -math.inf).triu(1)[None, None]
        expected = layer(x, attention_mask=mask, position_embeddings=rope)
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert torch.allclose(got[rows], expected.reshape(n, -1), atol=1e-4)


def test_later_steps_equal_a_draft_chain_with_a_cache():
    """As a server drafts: the trunk's states up to t, then the layer's own outputs."""
    head = random_head(1)
    n = 7
    embedded, hidden = torch.randn(2, n, 24)
    outputs = head(embedded, hidden, [n], steps=3)
    for t in range(n - 2):  # a chain whose first input is position t
        chain = hidden.clone()
        said = []
        for step in range(3):
            at = t + step
            # a plain causal pass over the cache's inputs: trunk states, then own outputs
            (out,) = head(embedded[: at + 1], chain[: at + 1], [at + 1])
            said.append(out[at])
            if at + 1 < n:
                chain[at + 1] = out[at]
        for step in range(3):
            assert torch.allclose(outputs[step][t + step], said[step], atol=1e-4), (t, step)


def test_chain_attention_ignores_other_positions():
    q, k, v = torch.randn(4, 6, 8), torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    changed = k.clone()
    changed[3] += 5
    base = chain_attention(q, [(k, v), (k, v)])
    other = chain_attention(q, [(changed, v), (k, v)])
    assert torch.allclose(base[:4], other[:4])  # step 2 never sees its own position's step-1 key
    assert not torch.allclose(base[3], chain_attention(q, [(k, v), (changed, v)])[3])


def make_states(sessions, seed=0, vocabulary=40):
    """States in which the next token is a fixed function of the state: easy to learn."""
    rng = torch.Generator().manual_seed(seed)
    embedding = torch.randn(vocabulary, 24, generator=torch.Generator().manual_seed(9))
    tokens, output, segments, start = [], [], [], 0
    for i in range(sessions):
        prompt = [1, 30 + i % 5, 2, 1] + torch.randint(5, 40, (4,), generator=rng).tolist()
        row = list(prompt)
        for _ in range(12):
            row.append(3 + (row[-1] * 7 + 5) % 30)
        domain = "agent" if i % 2 else "other"
        segments.append(Segment(f"s{i}", domain, "t", i % 6 < 2, start, len(row)))
        tokens += row
        output += [False] * len(prompt) + [True] * 12
        start += len(row)
    tokens = torch.tensor(tokens)
    greedy = torch.cat((tokens[1:], torch.tensor([3])))
    hidden = 2 * embedding[greedy] + embedding[tokens]
    return States(
        tokens, greedy, torch.tensor(output), hidden.bfloat16(), tuple(segments)
    ), embedding


def test_batch_marks_where_a_server_drafts():
    tokens = torch.tensor([1, 10, 2, 1, 11, 12, 20, 21, 2, 13, 22])
    output = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1]).bool()
    states = States(
        tokens, tokens + 1, output, torch.arange(11.0)[:, None].bfloat16(),
        (Segment("a", "agent", "t", False, 0, 11),),
    )  # fmt: skip
    batch = make_batch(states, list(states.segments), start=1, end=2)
    assert batch.next_token.tolist() == tokens[1:].tolist()
    assert batch.greedy.tolist() == (tokens[1:] + 1).tolist()
    assert batch.target[:, 0].tolist() == list(range(1, 11))
    # next token 20, 21 and 22 were generated; 2 ends the answer, nothing is drafted after it
    assert batch.answer.nonzero().flatten().tolist() == [5, 6, 9]
    assert batch.text.nonzero().flatten().tolist() == [2, 3, 4, 8]


def test_accepted_lengths_by_hand():
    # answer of 6 drafting positions between prompts; right[step][position]
    answer = torch.tensor([0, 1, 1, 1, 1, 1, 1, 0]).bool()
    right = torch.tensor(
        [
            [0, 1, 0, 1, 1, 1, 0, 1],
            [0, 0, 1, 1, 0, 1, 1, 0],
            [0, 0, 0, 1, 1, 1, 0, 0],
        ]
    ).bool()
    # depth 1: t=1 right -> 1, t=3 right -> 1, t=5 right -> 1; next is t=7: no answer
    assert accepted_lengths(right, answer, 1) == [1, 1, 1]
    # depth 3: t=1: step 1 right, step 2 at 2 right, step 3 at 3 right -> 3;
    # t=5: right, step 2 at 6 right, the answer ends -> 2
    assert accepted_lengths(right, answer, 3) == [3, 2]
    # depth 2 from t=1: 2, then t=4: step 1 right, step 2 at 5 right -> 2
    assert accepted_lengths(right, answer, 2) == [2, 2]


def test_ridge_recovers_a_linear_map_and_the_vocabulary_is_by_frequency():
    rng = torch.Generator().manual_seed(0)
    embedding = torch.randn(40, 6, generator=rng)
    a, b = torch.randn(6, 6, generator=rng) * 0.3, torch.randn(6, 6, generator=rng) * 0.3
    tokens = torch.randint(0, 40, (600,), generator=rng)
    hidden = [torch.zeros(6)]
    for token in tokens[1:]:
        hidden.append(embedding[token] @ a.T + hidden[-1] @ b.T + 0.5)
    hidden = torch.stack(hidden).bfloat16()
    states = States(
        tokens, tokens, torch.ones(600).bool(), hidden, (Segment("a", "agent", "t", False, 0, 600),)
    )
    weight, bias = ridge_fc(states, embedding)
    assert torch.allclose(weight, torch.cat((a, b), 1), atol=0.05)
    assert torch.allclose(bias, torch.full((6,), 0.5), atol=0.05)
    counts = torch.bincount(tokens, minlength=40)
    chosen = draft_vocabulary(token_counts(states, 40), 10).tolist()
    assert chosen == sorted(chosen) and len(set(chosen)) == 10
    assert min(counts[chosen]) >= max(counts[[i for i in range(40) if i not in chosen]])


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A trunk checkpoint folder (embedding and last layer only matter) and extracted states."""
    folder = tmp_path_factory.mktemp("train")
    states, embedding = make_states(60)
    torch.manual_seed(3)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(24)}
    for name, w in random_head(5).layers[0].state_dict().items():
        weights[f"model.layers.1.{name}"] = w
    weights["model.layers.1.input_layernorm.weight"] = torch.ones(24)
    save_file({k: w.bfloat16() for k, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    states.save(folder / "states-0-0000.safetensors")
    return folder


PLAN = TrainPlan(
    train_tokens=40_000, draft_vocabulary=36, batch_tokens=200, processes=1, warmup_steps=3,
    muon_lr=0.02, eval_every_tokens=20_000, checkpoint_every_steps=5,
)  # fmt: skip


def test_training_learns_and_goes_on_after_an_interruption(setting, tmp_path, monkeypatch):
    out, interrupted = tmp_path / "a", tmp_path / "b"
    for folder in (out, interrupted):
        folder.mkdir()
    torch.manual_seed(4)
    start = EagleHead(SHAPE)  # worse than the regression, so that there is something to learn
    monkeypatch.setattr("kvtop_lib.models.mtp_trainer.initial_head", lambda *_: deepcopy(start))
    Trainer(setting, setting, out, PLAN, rank=0).run()
    first, *_, last = map(json.loads, (out / "curve.jsonl").read_text().splitlines())
    assert first["tokens"] == 0 and last["tokens"] >= 40_000
    assert first["agent"]["agreement"][0] < 0.3 and last["agent"]["agreement"][0] > 0.7

    train, calls = Trainer.train, []

    def stops(self, batch):
        if len(calls) == 13:
            raise KeyboardInterrupt
        calls.append(1)
        return train(self, batch)

    monkeypatch.setattr(Trainer, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        Trainer(setting, setting, interrupted, PLAN, rank=0).run()
    monkeypatch.setattr(Trainer, "train", train)
    trainer = Trainer(setting, setting, interrupted, PLAN, rank=0)
    trainer.run()  # from the checkpoint after step 10
    whole = torch.load(out / "final.pt", weights_only=True)["head"]
    resumed = torch.load(interrupted / "final.pt", weights_only=True)["head"]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_correct_compares_with_the_whole_vocabulary():
    states, embedding = make_states(2)
    batch = make_batch(states, list(states.segments), 1, 2)
    head = random_head()
    with torch.no_grad():
        outputs = head(embedding[batch.next_token], batch.hidden, batch.lengths, 2)
    vocabulary = torch.tensor([3, 9, 17, 33])
    got = correct(head, batch, Shared(embedding, vocabulary), steps=2)
    for step, out in enumerate(outputs):
        for row in range(len(batch)):
            said = max(vocabulary.tolist(), key=lambda t: float(out[row] @ embedding[t]))
            assert bool(got[step, row]) == (said == int(batch.greedy[row]))


def test_split_needs_held_out_sessions_of_both_domains():
    states, _ = make_states(6)
    train, held = split(states.segments)
    assert [s.id for s in train] == ["s2", "s3", "s4", "s5"]
    assert [s.id for s in held["other"]] == ["s0"] and [s.id for s in held["agent"]] == ["s1"]
    with pytest.raises(KvtopError, match="extract more"):
        split(train)


def test_batches_hold_every_session_once_and_differ_by_seed():
    segments = [Segment(f"s{i}", "agent", "t", False, i, 10 + i) for i in range(20)]
    groups = list(batches(segments, 50, seed=1))
    assert sorted(s.id for g in groups for s in g) == sorted(s.id for s in segments)
    assert all(sum(s.length - 1 for s in g) >= 50 for g in groups[:-1])
    assert [s.id for g in groups for s in g] != [
        s.id for g in batches(segments, 50, seed=2) for s in g
    ]


def test_rate_warms_up_and_decays():
    plan = TrainPlan(train_tokens=1000, warmup_steps=10)
    assert rate(0, 0, plan) == pytest.approx(0.1)
    assert rate(50, 500, plan) == pytest.approx(0.5)
    assert rate(99, 1000, plan) == pytest.approx(0.02)

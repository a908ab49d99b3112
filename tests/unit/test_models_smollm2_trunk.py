"""The batch generator against Hugging Face's Llama, and sessions against one-by-one decoding."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from kvtop_lib.models.chat import Chat
from kvtop_lib.models.mtp_extract import Lane, answer_sessions
from kvtop_lib.models.mtp_prompts import TrainingSession
from kvtop_lib.models.mtp_states import States, concatenate, load_states, stored_segments
from kvtop_lib.models.trunk import Trunk, linear_dtype

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 97,
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e5,
    "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A random HF Llama whose weights are exact in bf16, and its checkpoint folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    for parameter in model.parameters():
        parameter.data = (parameter.data * 4).bfloat16().float()
    folder = tmp_path_factory.mktemp("llama")
    weights = {k: w.clone() for k, w in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return model, folder


def hf_states(model, tokens):
    with torch.no_grad():
        return model.model(torch.tensor(tokens)[None]).last_hidden_state[0]


def test_prefill_and_ragged_decode_give_hugging_faces_states(reference):
    model, folder = reference
    trunk = Trunk(folder, slots=3, positions=64, dtype=torch.float32)
    rng = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 97, (n,), generator=rng).tolist() for n in (9, 17, 5)]
    got = []
    for slot, row in enumerate(rows):  # prompt in two pieces, the last token is decoded
        first = trunk.prefill(slot, torch.tensor(row[:3]), 0)
        second = trunk.prefill(slot, torch.tensor(row[3:-1]), 3)
        got.append(torch.cat((first, second)))
    order = torch.tensor([2, 0, 1])
    last = trunk.decode(
        order,
        torch.tensor([rows[i][-1] for i in order]),
        torch.tensor([len(rows[i]) - 1 for i in order]),
    )
    for at, slot in enumerate(order.tolist()):
        states = torch.cat((got[slot], last[at : at + 1]))
        expected = hf_states(model, rows[slot])
        assert (states - expected).norm() / expected.norm() < 0.01  # keys, values are bf16
    with torch.no_grad():
        logits = model.lm_head(last)
    assert trunk.argmax(last).tolist() == logits.argmax(-1).tolist()


class FakeChat:
    """Prompts of fixed tokens; token 7 ends an answer."""

    end = 7

    class tokenizer:
        @staticmethod
        def decode(ids):
            return " ".join(f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in ids)

    def opening(self, messages):
        return messages[0]["content"]

    def later(self, messages, output):
        return ([] if output[-1] == self.end else [self.end]) + messages[0]["content"]


def test_sessions_equal_one_by_one_greedy_decoding(reference):
    model, folder = reference

    def turn(*tokens):
        return ({"role": "user", "content": list(tokens)},)

    sessions = [
        TrainingSession("a", "agent", "t", False, 6, (turn(3, 4, 5), turn(11, 12))),
        TrainingSession("b", "other", "t", True, 9, (turn(20, 21),)),
        TrainingSession("c", "agent", "t", False, 4, (turn(30), turn(31), turn(32))),
    ]
    trunk = Trunk(folder, slots=2, positions=64, dtype=torch.float32)
    chat = FakeChat()
    for states in answer_sessions(trunk, chat, sessions, slots=2):
        (segment,) = states.segments
        session = next(s for s in sessions if s.id == segment.id)
        tokens, output = [], []
        for k, messages in enumerate(session.turns):
            new = chat.later(messages, answer) if k else chat.opening(messages)  # noqa: F821
            tokens += new
            output += [False] * len(new)
            answer = []
            while len(answer) < session.max_output_tokens and chat.end not in answer:
                with torch.no_grad():
                    logits = model.lm_head(hf_states(model, tokens)[-1])
                answer.append(int(logits.argmax()))
                tokens.append(answer[-1])
                output.append(True)
        # the very last token was never shown to the trunk, so it has no state
        assert states.tokens.tolist() == tokens[:-1]
        assert states.greedy.tolist()[-1] == tokens[-1]
        assert states.output.tolist() == output[:-1]
        expected = hf_states(model, tokens[:-1])
        assert (states.hidden.float() - expected).norm() / expected.norm() < 0.02


def test_a_turn_that_loops_is_taken_back(reference, monkeypatch):
    model, folder = reference
    trunk = Trunk(folder, slots=1, positions=64, dtype=torch.float32)
    chat = FakeChat()

    def turn(*tokens):
        return ({"role": "user", "content": list(tokens)},)

    loops = iter([False, True, False])  # the second of three answers
    monkeypatch.setattr("kvtop_lib.models.mtp_extract.ends_in_loop", lambda text: next(loops))
    turns = (turn(3, 4, 5), turn(50, 51), turn(60))
    session = TrainingSession("a", "agent", "t", False, 6, turns)
    (states,) = answer_sessions(trunk, chat, [session], slots=1)
    shorter = TrainingSession("b", "agent", "t", False, 6, (turns[0], turns[2]))
    monkeypatch.setattr("kvtop_lib.models.mtp_extract.ends_in_loop", lambda text: False)
    (expected,) = answer_sessions(trunk, chat, [shorter], slots=1)
    for name in ("tokens", "greedy", "output", "hidden"):
        assert torch.equal(getattr(states, name), getattr(expected, name))
    monkeypatch.setattr("kvtop_lib.models.mtp_extract.ends_in_loop", lambda text: True)
    assert list(answer_sessions(trunk, chat, [session], slots=1)) == []


def test_an_answer_may_be_empty(reference):
    _, folder = reference
    trunk = Trunk(folder, slots=1, positions=64, dtype=torch.float32)
    chat = FakeChat()
    session = TrainingSession(
        "a", "agent", "t", False, 6, (({"role": "user", "content": [3, 4, 5]},),)
    )
    lane = Lane(trunk, chat, 0, session)
    lane.pending = chat.end
    assert lane.answered() and not lane.goes_on()
    assert lane.states().tokens.tolist() == [3, 4, 5]


def test_chat_turns_join_to_the_chat_template():
    from jinja2 import Template

    from kvtop_lib.models.gguf_llama import GgufLlama
    from kvtop_lib.models.smollm2 import gguf_path

    model = GgufLlama(gguf_path())
    chat = Chat.__new__(Chat)
    chat.tokenizer = model.tokenizer()
    chat.end = chat.tokenizer.token_to_id("<|im_end|>")
    template = Template(model.tokenizer_config()["chat_template"])
    user = [
        {"role": "user", "content": f"Question {i} about x_y?\n\n```py\nif a:\n```"} for i in "ab"
    ]
    said = "An answer, cut"
    for ended in (True, False):
        output = chat.encode(said) + ([chat.end] if ended else [])
        ids = chat.opening(user[:1]) + output + chat.later(user[1:], output)
        messages = [user[0], {"role": "assistant", "content": said}, user[1]]
        text = template.render(messages=messages, add_generation_prompt=True)
        assert ids == chat.encode(text)


def test_shards_round_trip_and_concatenate(tmp_path, reference):
    def part(name, n, base):
        from kvtop_lib.models.mtp_states import Segment

        return States(
            torch.arange(n) + base, torch.arange(n) + base + 1, torch.arange(n) % 2 == 1,
            torch.full((n, 4), float(base)).bfloat16(), (Segment(name, "agent", "t", False, 0, n),),
        )  # fmt: skip

    concatenate([part("a", 3, 10), part("b", 2, 20)]).save(tmp_path / "states-0-0000.safetensors")
    part("c", 4, 30).save(tmp_path / "states-1-0000.safetensors")
    assert [s.id for s in stored_segments(tmp_path)] == ["a", "b", "c"]
    some = load_states(tmp_path, ["b", "c"])
    assert some.tokens.tolist() == [20, 21, 30, 31, 32, 33]
    assert [(s.id, s.start) for s in some.segments] == [("b", 0), ("c", 2)]
    states = load_states(tmp_path)
    assert [(s.id, s.start, s.length) for s in states.segments] == [
        ("a", 0, 3), ("b", 3, 2), ("c", 5, 4),
    ]  # fmt: skip
    assert states.tokens.tolist() == [10, 11, 12, 20, 21, 30, 31, 32, 33]
    assert states.hidden[:, 0].tolist() == [10] * 3 + [20] * 2 + [30] * 4


def test_text_that_is_only_read_gives_its_states_and_too_long_an_opening_is_passed_over(
    reference, monkeypatch
):
    model, folder = reference
    monkeypatch.setattr("kvtop_lib.models.mtp_extract.POSITIONS", 8)
    text, long = [3, 4, 5, 11, 12], list(range(20, 28))
    sessions = [
        TrainingSession(name, "reading", "Read.", False, 1, (({"role": "user", "content": said},),))
        for name, said in (("long", long), ("read", text))
    ]
    trunk = Trunk(folder, slots=1, positions=8, dtype=torch.float32)
    (states,) = answer_sessions(trunk, FakeChat(), sessions, slots=1)
    assert states.segments[0].id == "read" and states.tokens.tolist() == text
    assert not states.output.any()  # it says nothing that a server would draft
    expected = hf_states(model, text)
    assert (states.hidden.float() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize(
    "flag, bf16_s, chosen",
    [(True, 1.0, torch.bfloat16), (True, 3.0, torch.float32), (False, 1.0, torch.float32)],
)
def test_bf16_is_taken_where_it_is_there_and_faster(monkeypatch, flag, bf16_s, chosen):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: flag)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    took = {torch.bfloat16: bf16_s, torch.float32: 2.0}
    monkeypatch.setattr("kvtop_lib.models.trunk._product_s", took.__getitem__)
    assert linear_dtype.__wrapped__() is chosen

"""Requests of one shape: exactly as many tokens as asked, real text, no two alike."""

from __future__ import annotations

import shutil

import pytest
from tokenizers import Tokenizer

from kvtop_lib import paths
from kvtop_lib.params import FixedShape, Workload
from kvtop_lib.replay.fixed import fixed_trace
from kvtop_lib.replay.source import about, workload_trace
from kvtop_lib.terms import KvtopError

TINY = paths.embedded_dir() / "tiny-glm"


@pytest.fixture(scope="module")
def trace():
    return fixed_trace(FixedShape(input_tokens=100, output_tokens=20, sessions=60), TINY, 5)


def test_every_prompt_has_exactly_the_tokens_that_the_server_will_count(trace):
    reader = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for session in trace.sessions:
        (message,) = session.request_messages(0)
        # the template of tiny-glm, written out by hand
        prompt = f"<|begin|><|user|>\n{message['content']}<|end|><|assistant|>\n"
        assert len(reader.encode(prompt, add_special_tokens=False).ids) == 100
        assert session.turns[0].output_tokens == 20 and len(session.turns) == 1


def test_no_two_prompts_are_alike_and_they_part_at_once(trace):
    texts = [s.request_messages(0)[0]["content"] for s in trace.sessions]
    assert len(set(texts)) == 60 and len({t[:40] for t in texts}) == 60
    assert all(t.isascii() and " " in t for t in texts)


def test_the_seed_decides_the_prompts_and_is_recorded(trace):
    shape = FixedShape(input_tokens=100, output_tokens=20, sessions=6)
    again, other = (fixed_trace(shape, TINY, seed) for seed in (5, 6))
    assert [s.turns for s in again.sessions] == [s.turns for s in trace.sessions[:6]]
    texts, others = (
        {s.turns[0].messages[0]["content"] for s in t.sessions} for t in (again, other)
    )
    assert texts.isdisjoint(others)
    said = about(other)["fixed"]
    assert (said["seed"], said["input_tokens"], said["output_tokens"]) == (6, 100, 20)
    assert len(said["corpus_sha256"]) == len(said["tokenizer_sha256"]) == 64


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"input_tokens": 2, "output_tokens": 1}, "the chat template alone takes"),
        ({"input_tokens": 7, "output_tokens": 1, "sessions": 100_000}, "ask for more"),
    ],
)
def test_shapes_that_cannot_be_made_are_one_sentence(shape, said, monkeypatch):
    if "sessions" in shape:  # one piece of text only: prompts of a few tokens cannot differ
        monkeypatch.setattr("kvtop_lib.replay.fixed.BlockText.make", lambda *_: " word")
        monkeypatch.setattr("kvtop_lib.replay.fixed._exact", lambda *_: "word")
        shape = shape | {"sessions": 10}
    with pytest.raises(KvtopError, match=said):
        fixed_trace(FixedShape(**shape), TINY, 1)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("tokenizer_config.json", b"{", "is not JSON (Expecting property name"),
        ("tokenizer_config.json", b"[" * 100_000, "is not JSON ("),
        ("tokenizer_config.json", b"[]", "must hold a JSON object, not a list"),
        ("tokenizer_config.json", b"\xff", "cannot be read as text ('utf-8' codec"),
        ("tokenizer_config.json", b'{"bos_token": {"x": 1}, "chat_template": "a"}',
         'bos_token in'),
        ("tokenizer_config.json", b'{"chat_template": "{{ 1 + [] }}"}', "cannot be rendered (unsu"),
        ("tokenizer_config.json", b'{"chat_template": "{{ 1 / 0 }}"}', "cannot be rendered (div"),
        ("tokenizer_config.json", b'{"chat_template": "{{"}', "cannot be rendered (unexpected"),
        ("tokenizer_config.json", b'{"chat_template": "\\ud800"}', "cannot be rendered ('utf-8'"),
        ("chat_template.jinja", b"\xff", "cannot be read as text ('utf-8' codec"),
        ("chat_template.jinja", b"{{ messages + 1 }}", "cannot be rendered ("),
    ],
)  # fmt: skip
def test_a_faulty_file_beside_the_tokenizer_is_one_sentence(
    tmp_path, monkeypatch, name, data, said
):
    monkeypatch.setattr("kvtop_lib.replay.fixed.PieceBook.of", lambda _: None)  # takes a second
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    (tmp_path / name).write_bytes(data)
    shape = FixedShape(input_tokens=30, output_tokens=2, sessions=2)
    for tokenizer in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(KvtopError) as caught:
            fixed_trace(shape, tokenizer, 1)
        message = str(caught.value)
        assert str(tmp_path / name) in message and said in message and "\n" not in message


def test_a_workload_is_a_trace_or_a_shape():
    words = {"id": "w", "title": "W", "max_output_tokens": 9}
    shape = {"input_tokens": 60, "output_tokens": 9, "sessions": 3}
    fixed = Workload(**words, output="recorded", fixed=shape)
    assert len(workload_trace(fixed, TINY, 1).sessions) == 3
    with pytest.raises(KvtopError, match="needs the served model's tokenizer"):
        workload_trace(fixed, None, 1)
    tiny = workload_trace(Workload(**words, trace="builtin:agent-tiny"), None, 1)
    assert about(tiny)["sessions"] == len(tiny.sessions) > 5
    cut = workload_trace(
        Workload(**words, trace="builtin:agent-tiny", max_context_tokens=400), None, 1
    )
    assert max(s.total_tokens for s in cut.sessions) <= 400 and "cut" in about(cut)

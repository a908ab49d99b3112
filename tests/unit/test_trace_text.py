"""Text of block identities: exact in tokens for two real tokenizers, shared as the ids say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from trace_samples import SAMPLES

from kvtop_lib.models import gguf_llama, smollm2
from kvtop_lib.paths import embedded_dir
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Session, Trace, Turn, load_trace
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.pieces import PieceBook, corpus
from kvtop_lib.trace.text import BlockText, load_tokenizer


@pytest.fixture(scope="module", params=["tiny-glm", "smollm2"])
def tokenizer(request) -> Tokenizer:
    if request.param == "smollm2":
        return gguf_llama.GgufLlama(smollm2.gguf_path()).tokenizer()
    return load_tokenizer(embedded_dir() / "tiny-glm")


@pytest.fixture(scope="module")
def maker(tokenizer) -> BlockText:
    return BlockText(PieceBook.of(tokenizer), "test")


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_two_thousand_blocks_are_exact_alone_and_in_a_row(tokenizer, maker):
    rng = random.Random(1)
    wanted = [rng.choice((1, 2, 3, 5, 8, 16, 64, 129, 512)) for _ in range(2_400)]
    texts = [maker.make(("", i, 512), n) for i, n in enumerate(wanted)]
    found = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert [len(f) for f in found] == wanted
    for start in range(0, len(texts), 60):
        part = slice(start, start + 60)
        together = list(itertools.chain.from_iterable(found[part]))
        assert ids(tokenizer, "".join(texts[part])) == together
    mixed = rng.sample(range(len(texts)), 300)
    together = list(itertools.chain.from_iterable(found[i] for i in mixed))
    assert ids(tokenizer, "".join(texts[i] for i in mixed)) == together


def test_different_blocks_part_at_once(tokenizer, maker):
    texts = [maker.make((scope, i, 16), 16) for scope in ("", "a", "b") for i in range(1_000)]
    found = [tuple(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert len(set(found)) == len(found)
    rng = random.Random(2)
    pairs = [rng.sample(found, 2) for _ in range(5_000)]
    shared = [common(a, b) for a, b in pairs]
    assert sum(n > 0 for n in shared) < 5_000 * 0.01  # 1 / pieces of one token
    assert max(shared) <= 2


def test_it_is_text_of_the_corpus(maker):
    text = maker.make(("", 5, 512), 512)
    source = "\n".join(corpus())
    words = text.split(" ")
    runs = [" ".join(words[i : i + 6]) for i in range(3, len(words) - 30, 6)]
    assert sum(run in source for run in runs) >= 0.6 * len(runs)


def test_the_same_identities_give_the_same_text_in_another_process_of_thought(tokenizer, maker):
    again = BlockText(PieceBook.of(tokenizer), "test")
    for identity in (("", 1, 64), ("trace_7", 1, 64), ("", -(2**63), 64)):
        assert again.make(identity, 64) == maker.make(identity, 64)
    assert maker.make(("", 1, 64), 64) != maker.make(("trace_7", 1, 64), 64)


def block_session(*prompts: tuple[list[int], int], scope: str = "") -> Session:
    turns = [
        Turn((), None, 5, "unknown", n, blocks=Blocks.of(ids, 64, scope)) for ids, n in prompts
    ]
    return Session("s", "t", tuple(turns))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(a, b, strict=False)))


def test_prompts_share_tokens_as_their_blocks_do(tokenizer):
    session = block_session(
        ([1, 2, 3], 192), ([1, 2, 3, 4], 250), ([1, 2, 5], 170), ([1, 2], 200), ([9], 64)
    )
    trace = Trace("x", {}, (session, replace(session, id="other")))
    a, b = trace.with_text(tokenizer).sessions
    prompts = [ids(tokenizer, a.request_messages(k)[0]["content"]) for k in range(5)]
    assert [len(p) for p in prompts] == [192, 250, 170, 200, 64]
    assert common(prompts[0], prompts[1]) == 192 == session.shared_tokens(1)
    assert 128 <= common(prompts[1], prompts[2]) <= 130 and session.shared_tokens(2) == 128
    assert common(prompts[2], prompts[3]) <= 130
    other = [ids(tokenizer, b.request_messages(k)[0]["content"]) for k in range(5)]
    assert other[:3] == prompts[:3]  # all blocks, in the scope of the whole trace
    assert 128 <= common(other[3], prompts[3]) <= 130  # 72 tokens that are each session's own


def test_scopes_keep_equal_ids_apart(tokenizer):
    one, two = block_session(([1, 2], 128), scope="a"), block_session(([1, 2], 128), scope="b")
    made = Trace("x", {}, (one, replace(two, id="t"))).with_text(tokenizer).sessions
    first, second = (ids(tokenizer, s.request_messages(0)[0]["content"]) for s in made)
    assert common(first, second) <= 2


@pytest.mark.parametrize("name", ["mooncake", "qwen-bailian", "weka", "azure", "tracelab"])
def test_every_block_trace_becomes_prompts_of_its_lengths(tmp_path, tokenizer, name):
    path = tmp_path / "t"
    path.write_text(SAMPLES[name], encoding="utf-8")
    plain = load_trace(path)
    with pytest.raises(KvtopError, match="tells token blocks or lengths and no text; name"):
        plain.sessions[0].request_messages(0)
    trace = load_trace(path, tokenizer=tokenizer)
    assert trace.sessions == plain.sessions and not plain.recorded_with.get("text")
    assert set(trace.recorded_with["text"]) == {"tokenizer_sha256", "corpus_sha256"}
    for session in trace.sessions:
        for k, turn in enumerate(session.turns):
            (message,) = session.request_messages(k)
            assert message["role"] == "user"
            assert len(ids(tokenizer, message["content"])) == turn.prompt_tokens


def test_recorded_text_is_counted_and_untold_answers_are_made(tmp_path, tokenizer):
    path = tmp_path / "t"
    path.write_text(SAMPLES["mooncake extended"], encoding="utf-8")
    a, b, c = load_trace(path, tokenizer=tokenizer).sessions
    question, answer, _ = b.request_messages(1)
    assert answer["role"] == "assistant" and b.turns[0].output is None
    assert len(ids(tokenizer, " " + answer["content"])) == b.turns[0].output_tokens == 6
    n = len(ids(tokenizer, question["content"]))
    assert b.turns[0].prompt_tokens == n + 5
    assert b.turns[1].prompt_tokens == n + 5 + 6 + 5 + len(ids(tokenizer, "And 3 + 3?")) + 5
    path.write_text(SAMPLES["tau-bench"], encoding="utf-8")
    assert load_trace(path).recorded_with["tokens"] == "estimated from characters"
    counted = load_trace(path, tokenizer=tokenizer)
    assert "counted_with_tokenizer_sha256" in counted.recorded_with["tokens"]
    assert counted.sessions[0].turns[1].output_tokens == len(ids(tokenizer, "You are Ann."))


def test_a_trace_with_its_own_text_stays_as_it_is(tokenizer):
    trace = load_trace("builtin:agent-tiny")
    assert trace.with_text(tokenizer) is trace


def test_a_tokenizer_that_joins_words_is_refused():
    joined = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    joined.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]+"), "isolated")
    with pytest.raises(KvtopError, match="does not keep words apart"):
        PieceBook.of(joined)


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(KvtopError, match="There is no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(KvtopError, match="is no tokenizer"):
        load_tokenizer(tmp_path)

"""Conversion of the GGUF trunk: layout, names, tokenizer, and that a second call does nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvtop_lib.models import gguf_llama, smollm2
from kvtop_lib.terms import KvtopError

CHAT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi 42<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def rotate_pairs(x, angles):
    """llama.cpp's RoPE: neighbouring elements (2i, 2i + 1) form a pair."""
    out = np.empty_like(x)
    even, odd = x[0::2], x[1::2]
    out[0::2] = even * np.cos(angles) - odd * np.sin(angles)
    out[1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return out


def rotate_halves(x, angles):
    """Hugging Face's RoPE: elements (i, i + d / 2) form a pair."""
    first, second = np.split(x, 2)
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            first * np.sin(angles) + second * np.cos(angles),
        ]
    )


def test_unpermuted_projection_gives_the_same_attention_scores():
    rng = np.random.default_rng(0)
    heads, head_dim, inputs = 3, 8, 5
    q, k = rng.normal(size=(2, heads * head_dim, inputs))
    x, y = rng.normal(size=(2, inputs))
    angles = rng.uniform(size=(2, head_dim // 2)) * 6
    q_hf, k_hf = gguf_llama.unpermute_rows(q, heads), gguf_llama.unpermute_rows(k, heads)
    for head in range(heads):
        rows = slice(head * head_dim, (head + 1) * head_dim)
        ours = rotate_halves(q_hf[rows] @ x, angles[0]) @ rotate_halves(k_hf[rows] @ y, angles[1])
        theirs = rotate_pairs(q[rows] @ x, angles[0]) @ rotate_pairs(k[rows] @ y, angles[1])
        assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_names(name, expected):
    assert gguf_llama.hf_name(name) == expected


def test_unknown_tensor_is_refused():
    with pytest.raises(KvtopError, match="blk.0.attn_q_norm"):
        gguf_llama.hf_name("blk.0.attn_q_norm.weight")


@pytest.fixture(scope="module")
def model():
    return gguf_llama.GgufLlama(smollm2.gguf_path())


def test_config_is_the_published_architecture(model):
    config = model.config()
    assert (config["hidden_size"], config["num_hidden_layers"]) == (576, 30)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert (config["head_dim"], config["rope_theta"], config["rms_norm_eps"]) == (64, 1e5, 1e-5)
    assert config["tie_word_embeddings"] and config["vocab_size"] == 49152


def test_tokenizer_round_trips_and_knows_the_chat_template(model, tmp_path):
    from transformers import AutoTokenizer

    model.tokenizer().save(str(tmp_path / "tokenizer.json"))
    gguf_llama.write_json(tmp_path / "tokenizer_config.json", model.tokenizer_config())
    gguf_llama.write_json(tmp_path / "config.json", model.config())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 42"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == CHAT
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids[0] == 1 and ids.count(1) == 3 and ids.count(2) == 2
    assert len(tokenizer("2024", add_special_tokens=False).input_ids) == 4  # digits stand alone
    for sample in ("def f(x):\n\treturn x  # αβ 日本\r\n", "  leading, trailing  ", CHAT):
        assert tokenizer.decode(tokenizer(sample, add_special_tokens=False).input_ids) == sample


def test_second_build_writes_nothing_and_a_changed_source_rebuilds(tmp_path, monkeypatch):
    calls = []

    def fake_convert(source, folder):
        calls.append(source)
        (folder / "model.safetensors").write_text("x")

    monkeypatch.setattr(smollm2, "convert", fake_convert)
    folder = smollm2.build(tmp_path / "m")
    assert smollm2.build(tmp_path / "m") == folder and len(calls) == 1
    stamp = folder / smollm2.FINGERPRINT
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "gguf_bytes": 1}))
    smollm2.build(tmp_path / "m")
    assert len(calls) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m"]  # no temporary folder is left


def test_failed_conversion_leaves_nothing(tmp_path, monkeypatch):
    def broken(source, folder):
        (folder / "config.json").write_text("{}")
        raise RuntimeError("disk full")

    monkeypatch.setattr(smollm2, "convert", broken)
    with pytest.raises(RuntimeError):
        smollm2.build(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []

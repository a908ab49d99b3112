"""The committed checkpoint: complete, small, unaltered, and its card says what was measured."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer

from kvtop_lib.models.tiny_glm_report import card
from kvtop_lib.paths import embedded_dir

FOLDER = embedded_dir() / "tiny-glm"
METRICS = json.loads((FOLDER / "metrics.json").read_text())
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def expected_names() -> set[str]:
    """What SGLang's loader asks for, spelled out: no embedding or head of the NextN layer."""
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for layer in range(9):
        prefix = f"model.layers.{layer}"
        names |= {f"{prefix}.self_attn.{part}.weight" for part in ATTENTION}
        names |= {f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight"}
        if layer < 8:
            names |= {f"{prefix}.mlp.{part}.weight" for part in PROJECTIONS}
    nextn = "model.layers.8"
    names |= {f"{nextn}.{part}.weight" for part in ("eh_proj", "enorm", "hnorm")}
    names |= {f"{nextn}.shared_head.norm.weight", f"{nextn}.mlp.gate.weight"}
    names |= {f"{nextn}.mlp.gate.e_score_correction_bias"}
    for expert in ("shared_experts", *(f"experts.{i}" for i in range(4))):
        names |= {f"{nextn}.mlp.{expert}.{part}.weight" for part in PROJECTIONS}
    return names


def test_tensors_are_exactly_those_the_loader_asks_for():
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        assert set(file.keys()) == expected_names()
    tensors = load_file(FOLDER / "model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_shape_is_that_of_the_issue():
    tensors = load_file(FOLDER / "model.safetensors")
    unique = sum(t.numel() for n, t in tensors.items() if n != "lm_head.weight")
    assert 6.4e6 < unique < 6.8e6
    # parameters exclude the router's correction bias, which is not trained by gradient
    assert METRICS["parameters"] == unique - 4
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Glm4MoeForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    assert config["first_k_dense_replace"] == config["num_hidden_layers"] == 8
    assert config["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_folder_is_small_and_unaltered():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 15e6
    for name, digest in METRICS["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_card_is_the_one_of_the_metrics():
    assert (FOLDER / "README.md").read_text() == card(METRICS)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize("text", ["def f(x):\n    return x\n\n", "déjà vu 🙂\t\x00", "   a  1234"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_prompt_is_special_tokens_and_text(tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert (tokens[0], tokens[1]) == ("<|begin|>", "<|user|>")
    assert tokens[-3:] == ["<|end|>", "<|assistant|>", "Ċ"]
    config = json.loads((FOLDER / "config.json").read_text())
    assert tokenizer.eos_token_id == config["eos_token_id"] == tokens_id(tokenizer, "<|end|>")
    assert tokenizer.bos_token_id == config["bos_token_id"] == tokens_id(tokenizer, "<|begin|>")
    assert len(tokenizer) == config["vocab_size"] == 2048


def tokens_id(tokenizer, token: str) -> int:
    return tokenizer.convert_tokens_to_ids(token)

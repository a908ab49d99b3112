"""The bare loop against Hugging Face's own Llama on a tiny random checkpoint."""

import json

import pytest
import torch
from kernels_help import VARIANTS, on
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from kvtop_lib.sglang_plugin import bare_loop

NEW, TAIL = 12, 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=64,
        eos_token_id=3,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    # loaded anew: casting a model rounds its RoPE frequencies too
    return folder, LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def prompts(tmp_path):
    draw = torch.Generator().manual_seed(1)
    made = [torch.randint(4, 97, (n,), generator=draw).tolist() for n in (1, 9, 4, 20, 7, 3, 11)]
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"p{i}", "ids": ids}) + "\n" for i, ids in enumerate(made))
    )
    return path, made


def greedy(model, prompt):
    """Greedy continuation by the full forward of Hugging Face, and its hidden states."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + NEW and (ids == prompt or ids[-1] != 3):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
    return ids, states


def arguments(folder, path, out):
    return [
        "generate",
        "--model",
        str(folder),
        "--prompts",
        str(path),
        "--out",
        str(out),
        "--max-new-tokens",
        str(NEW),
        "--batch",
        "3",
        "--pool-tokens",
        "90",
        "--shard",
        "4",
        "--tail-tokens",
        str(TAIL),
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_generates_what_hugging_face_generates(variant, checkpoint, prompts, tmp_path):
    folder, model = checkpoint
    with on(variant):
        bare_loop.main(arguments(folder, prompts[0], tmp_path / "out"))
    number = 0
    for name in ("shard-00000.safetensors", "shard-00001.safetensors"):
        with safe_open(tmp_path / "out" / name, "pt") as file:
            get, ids = file.get_tensor, json.loads(file.metadata()["ids"])
            t, s = get("token_offsets").tolist(), get("state_offsets").tolist()
            for i, prompt_id in enumerate(ids):
                prompt = prompts[1][int(prompt_id[1:])]
                truth, states = greedy(model, prompt)
                assert get("tokens")[t[i] : t[i + 1]].tolist() == truth, prompt_id
                assert get("prompt_tokens")[i] == len(prompt)
                assert bool(get("stopped")[i]) == (truth[-1] == 3)
                first = max(0, len(prompt) - TAIL)
                assert get("first_position")[i] == first
                got = get("states")[s[i] : s[i + 1]].float()
                assert torch.allclose(got, states[first:-1], rtol=2**-8, atol=1e-4)
                number += 1
    assert number == 7


def test_a_done_shard_is_kept_and_only_the_missing_one_is_made(checkpoint, prompts, tmp_path):
    call = arguments(checkpoint[0], prompts[0], tmp_path)
    bare_loop.main(call)
    kept, missing = sorted(tmp_path.glob("shard-*"))
    content, stamp = missing.read_bytes(), kept.stat().st_mtime_ns
    missing.unlink()
    bare_loop.main(call)
    assert kept.stat().st_mtime_ns == stamp
    assert missing.read_bytes() == content


def test_says_what_is_wrong(checkpoint, prompts, tmp_path):
    with pytest.raises(SystemExit, match="does not fit"):
        bare_loop.main([*arguments(checkpoint[0], prompts[0], tmp_path), "--pool-tokens", "25"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "ids": [5]}\n{"id": "b"}\n')
    with pytest.raises(SystemExit, match="bad.jsonl:2"):
        bare_loop.main(arguments(checkpoint[0], bad, tmp_path))

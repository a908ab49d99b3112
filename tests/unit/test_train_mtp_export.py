"""What is committed of the draft layer, and that its data is not the workload's."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from safetensors import safe_open

from kvtop_lib.models import mtp_prompts
from kvtop_lib.models.mtp_card import card, percent
from kvtop_lib.models.mtp_corpus import is_heldout, package_files, sample_corpus
from kvtop_lib.models.mtp_export import draft_config, export_draft
from kvtop_lib.models.mtp_prompts import TrainingSession, load_words, read_sessions, write_sessions
from kvtop_lib.paths import embedded_dir
from kvtop_lib.terms import KvtopError

LAYER = embedded_dir() / "smollm2-mtp"


def test_export_leaves_out_what_the_trunk_shares(tmp_path):
    head = {"fc.weight": torch.randn(4, 8), "fc.bias": torch.randn(4)}
    torch.save({"head": head, "vocabulary": torch.tensor([2, 5, 9])}, tmp_path / "final.pt")
    trunk = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(trunk))
    export_draft(tmp_path / "final.pt", tmp_path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert (config["num_hidden_layers"], config["hot_vocab_size"]) == (1, 3)
    assert config["tie_word_embeddings"] is False and config["vocab_size"] == 10
    # SGLang reads the map with weights_only and makes int64 of it
    token_map = torch.load(tmp_path / "out" / "token_map.pt", weights_only=True)
    assert torch.tensor(token_map, dtype=torch.int64).tolist() == [2, 5, 9]
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as weights:
        assert sorted(weights.keys()) == ["fc.bias", "fc.weight"]
        assert weights.get_tensor("fc.bias").dtype == torch.bfloat16


def test_committed_layer_is_complete_small_and_matches_its_card():
    metrics = json.loads((LAYER / "metrics.json").read_text())
    assert (LAYER / "README.md").read_text() == card(metrics)
    assert f"{metrics['data']['positions']:,} positions" in card(metrics)
    assert f"{metrics['final']['agent']['agreement'][0]:.3f}" in card(metrics)
    assert sum(p.stat().st_size for p in LAYER.iterdir()) <= 25e6
    token_map = torch.load(LAYER / "token_map.pt", weights_only=True)
    config = json.loads((LAYER / "config.json").read_text())
    assert len(token_map) == len(set(token_map)) == config["hot_vocab_size"]
    assert 2 in token_map and max(token_map) < config["vocab_size"]  # 2 ends an answer
    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], 3 * 64
    with safe_open(LAYER / "model.safetensors", framework="pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    assert shapes == {
        "fc.weight": [hidden, 2 * hidden],
        "fc.bias": [hidden],
        "layers.0.self_attn.q_proj.weight": [hidden, hidden],
        "layers.0.self_attn.k_proj.weight": [kv, hidden],
        "layers.0.self_attn.v_proj.weight": [kv, hidden],
        "layers.0.self_attn.o_proj.weight": [hidden, hidden],
        "layers.0.mlp.gate_proj.weight": [inner, hidden],
        "layers.0.mlp.up_proj.weight": [inner, hidden],
        "layers.0.mlp.down_proj.weight": [hidden, inner],
        "layers.0.post_attention_layernorm.weight": [hidden],
    }


def test_training_shares_no_task_and_no_ask_with_the_workload():
    words = load_words()
    served = yaml.safe_load((embedded_dir() / "agent" / "tasks.yaml").read_text())
    ours = {*words["tasks"].values(), *words["heldout_tasks"].values(), *words["asks"]}
    assert not ours & {*served["tasks"].values(), *served["asks"]}
    for part in ("tasks", "questions", "programs", "jobs", "topics"):
        held = words[f"heldout_{part}"]
        held, trained = (list(x.values()) if part == "tasks" else x for x in (held, words[part]))
        assert held and not set(held) & set(trained)


def test_held_out_sessions_read_other_files(tmp_path):
    import random

    for i in range(60):
        path = tmp_path / "pandas" / f"part{i}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# file {i}\n" * 100)
    (tmp_path / "pandas" / "tiny.py").write_text("x")
    (tmp_path / "kvtop-0.1.dist-info").mkdir()
    (tmp_path / "kvtop-0.1.dist-info" / "METADATA").write_text("our own text " * 100)
    files = package_files(tmp_path)
    assert len(files) == 60
    rng = random.Random(0)
    held = {name for name, _ in sample_corpus(files, 60, rng, heldout=True)}
    trained = {name for name, _ in sample_corpus(files, 60, rng, heldout=False)}
    assert held and trained and not held & trained and all(map(is_heldout, held))
    with pytest.raises(KvtopError, match="make install"):
        package_files(tmp_path / "nothing")


def test_sessions_round_trip_and_are_the_same_for_a_seed(tmp_path, monkeypatch):
    corpus = [(f"f{i}.md", f"Line {i} of a text about nothing.\n\n" * 40) for i in range(50)]
    corpus = [(n, "\n\n".join(f"{t[:30]} {n} {k}" for k in range(300))) for n, t in corpus]
    monkeypatch.setattr(mtp_prompts, "package_files", lambda: [])
    monkeypatch.setattr(mtp_prompts, "sample_corpus", lambda *a, **k: corpus)
    sessions = mtp_prompts.training_sessions(30, seed=3)
    assert sessions == mtp_prompts.training_sessions(30, seed=3)
    assert sessions != mtp_prompts.training_sessions(30, seed=4)
    answered = [s for s in sessions if s.domain != "reading"]
    assert len({s.id for s in sessions}) == 30 and 10 < len(answered) < 25
    assert [s.heldout for s in answered] == [i % 12 == 0 for i in range(len(answered))]
    assert not any(s.heldout for s in sessions if s.domain == "reading")
    write_sessions(tmp_path / "p.jsonl", sessions)
    back = read_sessions(tmp_path / "p.jsonl")
    assert back == sessions and isinstance(back[0], TrainingSession)


def test_percent_and_config_of_another_trunk():
    assert percent(0.4567) == "45.7 %"
    assert draft_config({"architectures": ["X"], "a": 1}, 5)["a"] == 1

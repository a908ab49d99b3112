"""Write a draft layer in the form that SGLang serves, with its figures and its card."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvtop_lib.models.gguf_llama import write_json
from kvtop_lib.models.mtp_card import card


def draft_config(trunk: dict, vocabulary: int) -> dict:
    """`config.json` of the draft.

    The head is untied, because SGLang replaces embedding and head by the trunk's one after the
    other; `hot_vocab_size` keeps the placeholder small until then.
    """
    return {
        **{k: v for k, v in trunk.items() if k != "architectures"},
        "architectures": ["LlamaForCausalLMEagle"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "hot_vocab_size": vocabulary,
    }


def export_draft(result: Path, trunk: Path, out: Path) -> None:
    """Write `config.json`, `model.safetensors` (bf16) and `token_map.pt` to `out`.

    Parameters
    ----------
    result : Path
        `initial.pt` or `final.pt` of training.
    trunk : Path
        Checkpoint folder of the trunk. Its embedding and head are shared and not stored.
    """
    saved = torch.load(result, weights_only=True)
    vocabulary = saved["vocabulary"].tolist()
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: w.bfloat16().contiguous() for name, w in saved["head"].items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    config = json.loads((trunk / "config.json").read_text(encoding="utf-8"))
    write_json(out / "config.json", draft_config(config, len(vocabulary)))
    torch.save(vocabulary, out / "token_map.pt")


def export_figures(metrics: dict, out: Path) -> None:
    """Write `metrics.json` and the model card `README.md` made from it."""
    write_json(out / "metrics.json", metrics)
    (out / "README.md").write_text(card(metrics), encoding="utf-8")

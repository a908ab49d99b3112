"""Write a trained tiny-glm as a Hugging Face checkpoint that SGLang and transformers load.

`python -m kvtop_lib.models.tiny_glm_export --run DIR --to FOLDER`: bfloat16 safetensors, config,
tokenizer with chat template. The NextN layer is `model.layers.<num_hidden_layers>`; embedding and
head are not stored again for it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from kvtop_lib.models import tiny_glm_data as data
from kvtop_lib.models.tiny_glm_model import TinyGlm, TinyGlmConfig
from kvtop_lib.models.tiny_glm_train import grow, load_trained
from kvtop_lib.terms import KvtopError


def checkpoint_tensors(model: TinyGlm) -> dict[str, torch.Tensor]:
    """Checkpoint name -> bfloat16 tensor.

    `lm_head.weight` repeats the tied embedding (1 MB): SGLang's `Glm4MoeForCausalLM` ignores
    `tie_word_embeddings` and would leave its head random.
    """
    depth, tensors = len(model.layers), {}
    for name, tensor in model.state_dict().items():
        name = name.replace("nextn.", f"layers.{depth}.")
        tensors[f"model.{name}"] = tensor.to(torch.bfloat16).contiguous()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    return tensors


def checkpoint_config(config: TinyGlmConfig, tokenizer: Tokenizer) -> dict:
    """config.json: the architecture, with the rotary settings where transformers 5 keeps them."""
    fields = asdict(config)
    rope = {key: fields.pop(key) for key in ("rope_theta", "partial_rotary_factor")}
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        **fields,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": config.num_hidden_layers,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "partial_rotary_factor": config.partial_rotary_factor,
        "rope_parameters": {"rope_type": "default", **rope},
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.token_to_id(data.BEGIN),
        "eos_token_id": tokenizer.token_to_id(data.END),
        "pad_token_id": tokenizer.token_to_id(data.PAD),
        "dtype": "bfloat16",
    }


def export(model: TinyGlm, tokenizer: Tokenizer, folder: Path) -> None:
    """Write model.safetensors, config, tokenizer and generation files into `folder`."""
    config = model.config
    while len(model.layers) < config.num_hidden_layers:  # training was stopped early
        grow(model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(checkpoint_tensors(model), folder / "model.safetensors", {"format": "pt"})
    made = checkpoint_config(config, tokenizer)
    ids = {key: made[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": data.BEGIN,
        "eos_token": data.END,
        "pad_token": data.PAD,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": data.CHAT_TEMPLATE,
    }
    files = {
        "config.json": made,
        "generation_config.json": {**ids, "do_sample": False},
        "tokenizer_config.json": described,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def load_checkpoint(folder: Path) -> tuple[TinyGlm, Tokenizer]:
    """The training model (float32) filled from an exported checkpoint."""
    if not (folder / "model.safetensors").exists():
        raise KvtopError(f"No tiny-glm checkpoint in {folder}: export one there first.")
    stored = json.loads((folder / "config.json").read_text())
    stored.update(stored["rope_parameters"])
    config = TinyGlmConfig(**{name: stored[name] for name in asdict(TinyGlmConfig())})
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    nextn = f"layers.{config.num_hidden_layers}."
    model = TinyGlm(config)
    model.load_state_dict(
        {n.removeprefix("model.").replace(nextn, "nextn."): t for n, t in tensors.items()}
    )
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="training folder")
    parser.add_argument("--to", type=Path, required=True, help="folder of the checkpoint")
    chosen = parser.parse_args()
    export(*load_trained(chosen.run), chosen.to)

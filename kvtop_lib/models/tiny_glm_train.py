"""Train tiny-glm: `python -m kvtop_lib.models.tiny_glm_train --out DIR --minutes N`.

One process, one thread, seeded; float32, with products in bfloat16 on CPUs that have them. Run it
again with the same folder to go on after an interruption. The first part of the time trains half
of the layers, which are then doubled.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from kvtop_lib.models import tiny_glm_optim as optim
from kvtop_lib.models.tiny_glm_model import DecoderLayer, TinyGlm, TinyGlmConfig
from kvtop_lib.models.tiny_glm_stream import BATCH, LENGTH, batch_at, corpus, evaluate
from kvtop_lib.terms import KvtopError

GROW_AT = 0.35  # share of the time after which the trunk is doubled
SAVE_EVERY_S = 100.0


@dataclass
class Progress:
    """Where a training run is; `spent_s` counts training time over all starts."""

    step: int = 0
    spent_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.step * BATCH * LENGTH


def grow(model: TinyGlm) -> None:
    """Follow each layer by a copy that adds nothing yet, so the function stays the same."""
    doubled = []
    for layer in model.layers:
        copy = DecoderLayer(model.config)
        copy.load_state_dict(layer.state_dict())
        nn.init.zeros_(copy.self_attn.o_proj.weight)
        nn.init.zeros_(copy.mlp.down_proj.weight)
        doubled += [layer, copy]
    model.layers = nn.ModuleList(doubled)


def initialise(config: TinyGlmConfig, depth: int, seed: int) -> TinyGlm:
    torch.manual_seed(seed)
    model = TinyGlm(config, depth)
    for name, param in model.named_parameters():
        if param.ndim == 2:
            nn.init.normal_(param, std=0.02)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(param)
    return model


def save(
    path: Path, model: TinyGlm, made: list[torch.optim.Optimizer], now: Progress, seed: int
) -> None:
    partial = path.with_suffix(".partial")
    state = {
        "config": asdict(model.config),
        "depth": len(model.layers),
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in made],
        "step": now.step,
        "spent_s": now.spent_s,
        "seed": seed,
    }
    torch.save(state, partial)
    partial.replace(path)


def restore(
    path: Path, config: TinyGlmConfig, seed: int
) -> tuple[TinyGlm, list[torch.optim.Optimizer], Progress]:
    """Model, optimisers and progress of a saved run, or of a new one."""
    if not path.exists():
        model = initialise(config, config.num_hidden_layers // 2, seed)
        return model, optim.optimisers(model), Progress()
    saved = torch.load(path, weights_only=True)
    if saved["seed"] != seed or saved["config"] != asdict(config):
        raise KvtopError(
            f"{path} belongs to a run with another seed or shape: choose another folder."
        )
    model = initialise(config, saved["depth"], seed)
    model.load_state_dict(saved["model"])
    made = optim.optimisers(model)
    for optimiser, state in zip(made, saved["optimisers"], strict=True):
        optimiser.load_state_dict(state)
    return model, made, Progress(saved["step"], saved["spent_s"])


def train(
    folder: Path,
    minutes: float,
    seed: int = 0,
    config: TinyGlmConfig | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train until `minutes` are spent, going on from `folder`/state.pt where there is one.

    Writes metrics.json. Raises KvtopError when the folder holds a different run.
    """
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")  # twice the speed with AVX512-BF16, else nothing
    config = config or TinyGlmConfig()
    stream, held_out = corpus(folder, seed, config.vocab_size)
    model, made, now = restore(folder / "state.pt", config, seed)
    last, saved_s = clock(), now.spent_s
    while now.spent_s < minutes * 60:
        progress = now.spent_s / (minutes * 60)
        if progress >= GROW_AT and len(model.layers) < config.num_hidden_layers:
            grow(model)
            made = optim.optimisers(model)
        optim.set_rate(made, now.step, progress)
        trunk, mtp, agreement = optim.losses(model, batch_at(stream, now.step, seed))
        (trunk + optim.MTP_WEIGHT * mtp).backward()
        for optimiser in made:
            optimiser.step()
        model.zero_grad(set_to_none=True)
        optim.balance_experts(model)
        at = clock()
        now = Progress(now.step + 1, now.spent_s + at - last)
        last = at
        if now.step % 10 == 0:
            print(f"step {now.step} {now.spent_s:.0f} s {now.tokens} tokens "
                  f"depth {len(model.layers)} trunk {trunk:.3f} mtp {mtp:.3f} "
                  f"agreement {agreement:.3f}", flush=True)  # fmt: skip
        if now.spent_s - saved_s >= SAVE_EVERY_S:
            save(folder / "state.pt", model, made, now, seed)
            saved_s = now.spent_s
    save(folder / "state.pt", model, made, now, seed)
    torch.set_float32_matmul_precision("highest")
    figures = {
        "held_out": evaluate(model, held_out),
        "trained_tokens": now.tokens,
        "steps": now.step,
        "minutes": round(now.spent_s / 60, 1),
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "corpus": json.loads((folder / "corpus.json").read_text()),
    }
    (folder / "metrics.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures["held_out"]), flush=True)


def load_trained(folder: Path) -> tuple[TinyGlm, Tokenizer]:
    """The model of a training folder (finished or not) and its tokenizer."""
    saved = torch.load(folder / "state.pt", weights_only=True)
    model = TinyGlm(TinyGlmConfig(**saved["config"]), saved["depth"])
    model.load_state_dict(saved["model"])
    return model.eval(), Tokenizer.from_file(str(folder / "bpe.json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--minutes", type=float, default=33.0, help="training time")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    train(chosen.out, chosen.minutes, chosen.seed)

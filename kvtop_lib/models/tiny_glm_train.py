"""Train tiny-glm: `python -m kvtop_lib.models.tiny_glm_train --out DIR --minutes N`.

One process, one thread, float32, seeded; run it again with the same folder to go on after an
interruption. The first part of the time trains half of the layers, which are then doubled.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from kvtop_lib.models import tiny_glm_data as data
from kvtop_lib.models import tiny_glm_optim as optim
from kvtop_lib.models.tiny_glm_model import DecoderLayer, TinyGlm, TinyGlmConfig

BATCH, LENGTH = 8, 512
GROW_AT = 0.35  # share of the time after which the trunk is doubled
SAVE_EVERY_S = 100.0


@dataclass
class Progress:
    """Where a training run is; `spent_s` counts training time over all starts."""

    step: int = 0
    spent_s: float = 0.0
    tokens: int = 0


def corpus(folder: Path, seed: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Token streams (training, held out), kept in `folder` with the tokenizer and a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokens.npz").exists():
        documents = data.build_corpus(seed)
        tokenizer = data.train_tokenizer(documents, vocab_size)
        tokenizer.save(str(folder / "bpe.json"))
        train, held_out = data.encode(documents, tokenizer)
        summary = {
            "packages": data.versions(),
            "files": len(documents),
            "chat_files": sum(d.chat for d in documents),
            "held_out_files": sum(d.held_out for d in documents),
            "sha256": data.corpus_sha256(documents),
            "train_tokens": len(train),
            "held_out_tokens": len(held_out),
        }
        (folder / "corpus.json").write_text(json.dumps(summary, indent=1))
        np.savez(folder / "tokens.npz", train=train, held_out=held_out)
    stored = np.load(folder / "tokens.npz")
    return stored["train"], stored["held_out"]


def batch_at(stream: np.ndarray, step: int, seed: int) -> torch.Tensor:
    """(BATCH, LENGTH + 1) tokens of a step; one epoch uses each stretch of the stream once."""
    stretches = (len(stream) - 1) // LENGTH
    epoch, at = divmod(step * BATCH, stretches - stretches % BATCH)
    order = np.random.default_rng((seed, epoch)).permutation(stretches)[at : at + BATCH]
    rows = np.stack([stream[i * LENGTH : (i + 1) * LENGTH + 1] for i in order])
    return torch.from_numpy(rows.astype(np.int64))


@torch.no_grad()
def evaluate(model: TinyGlm, stream: np.ndarray, batches: int = 8) -> dict[str, float]:
    """Held-out losses against the text (nats per token) and draft-trunk agreement."""
    sums = torch.zeros(3)
    for step in range(batches):
        tokens = batch_at(stream, step, seed=0)
        hidden = model.hidden(tokens[:, :-1])
        trunk = model.logits(hidden)
        draft = model.logits(model.draft_hidden(tokens[:, 1:-1], hidden[:, :-1]))
        sums += torch.stack([
            nn.functional.cross_entropy(trunk.flatten(0, 1), tokens[:, 1:].flatten()),
            nn.functional.cross_entropy(draft.flatten(0, 1), tokens[:, 2:].flatten()),
            (draft.argmax(-1) == trunk[:, 1:].argmax(-1)).float().mean(),
        ])  # fmt: skip
    names = ("trunk_loss", "mtp_loss", "draft_trunk_agreement")
    return {name: round(value, 4) for name, value in zip(names, (sums / batches).tolist())}


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


def train(folder: Path, minutes: float, seed: int = 0, config: TinyGlmConfig | None = None) -> None:
    """Train until `minutes` are spent, going on from `folder`/state.pt where there is one."""
    torch.set_num_threads(1)
    config = config or TinyGlmConfig()
    stream, held_out = corpus(folder, seed, config.vocab_size)
    state_path, now = folder / "state.pt", Progress()
    half = config.num_hidden_layers // 2
    saved = torch.load(state_path, weights_only=True) if state_path.exists() else None
    depth = saved["depth"] if saved else half
    model = initialise(config, depth, seed)
    made = optim.optimisers(model)
    if saved:
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(made, saved["optimisers"]):
            optimiser.load_state_dict(state)
        now = Progress(**saved["progress"])

    def save() -> None:
        partial = state_path.with_suffix(".partial")
        torch.save({
            "depth": len(model.layers), "model": model.state_dict(), "progress": vars(now),
            "optimisers": [o.state_dict() for o in made], "seed": seed,
        }, partial)  # fmt: skip
        partial.replace(state_path)

    last, saved_s = time.monotonic(), now.spent_s
    while now.spent_s < minutes * 60:
        progress = now.spent_s / (minutes * 60)
        if progress >= GROW_AT and len(model.layers) == half:
            grow(model)
            made = optim.optimisers(model)
        optim.set_rate(made, now.step, progress)
        trunk, mtp, agreement = optim.losses(model, batch_at(stream, now.step, seed))
        (trunk + optim.MTP_WEIGHT * mtp).backward()
        for optimiser in made:
            optimiser.step()
        model.zero_grad(set_to_none=True)
        optim.balance_experts(model)
        now.step, now.tokens = now.step + 1, now.tokens + BATCH * LENGTH
        now.spent_s, last = now.spent_s + time.monotonic() - last, time.monotonic()
        if now.step % 10 == 0:
            print(
                f"step {now.step} {now.spent_s:.0f} s {now.tokens} tokens depth {len(model.layers)}"
                f" trunk {trunk:.3f} mtp {mtp:.3f} agreement {agreement:.3f}",
                flush=True,
            )
        if now.spent_s - saved_s > SAVE_EVERY_S:
            save()
            saved_s, last = now.spent_s, time.monotonic()
    save()
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
    model = TinyGlm(TinyGlmConfig(), saved["depth"])
    model.load_state_dict(saved["model"])
    return model.eval(), Tokenizer.from_file(str(folder / "bpe.json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--minutes", type=float, default=24.0, help="training time")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    train(chosen.out, chosen.minutes, chosen.seed)

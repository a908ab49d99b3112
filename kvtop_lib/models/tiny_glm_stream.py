"""Token streams of tiny-glm: made once per training folder, cut into batches, evaluated on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from kvtop_lib.models import tiny_glm_data as data
from kvtop_lib.models.tiny_glm_model import TinyGlm

BATCH, LENGTH = 8, 512


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
    """(BATCH, LENGTH + 1) tokens of a step; an epoch uses each stretch of the stream at most once.

    A row's last token is the next stretch's first, so that no prediction is left out.
    """
    stretches = (len(stream) - 1) // LENGTH
    epoch, at = divmod(step * BATCH, stretches - stretches % BATCH)
    order = np.random.default_rng((seed, epoch)).permutation(stretches)[at : at + BATCH]
    rows = np.stack([stream[i * LENGTH : (i + 1) * LENGTH + 1] for i in order])
    return torch.from_numpy(rows.astype(np.int64))


@torch.no_grad()
def evaluate(model: TinyGlm, stream: np.ndarray) -> dict[str, float]:
    """One pass over a stream: losses against the text (nats per token), draft-trunk agreement."""
    batches = (len(stream) - 1) // LENGTH // BATCH
    sums = torch.zeros(3)
    for step in range(batches):
        tokens = batch_at(stream, step, seed=0)
        hidden = model.hidden(tokens[:, :-1])
        trunk = model.logits(hidden)
        draft = model.logits(model.draft_hidden(tokens[:, 1:-1], hidden[:, :-1]))
        agreed = (draft.argmax(-1) == trunk[:, 1:].argmax(-1)).float().mean()
        sums[0] += F.cross_entropy(trunk.flatten(0, 1), tokens[:, 1:].flatten())
        sums[1] += F.cross_entropy(draft.flatten(0, 1), tokens[:, 2:].flatten())
        sums[2] += agreed
    means = (sums / batches).tolist()
    names = ("trunk_loss", "mtp_loss", "draft_trunk_agreement")
    return {name: round(value, 4) for name, value in zip(names, means, strict=True)}

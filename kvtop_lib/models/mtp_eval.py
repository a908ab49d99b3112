"""Does the draft layer say what the trunk will say? Agreement and simulated acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from kvtop_lib.models.eagle_head import EagleHead
from kvtop_lib.models.mtp_batches import Batch, batches, make_batch
from kvtop_lib.models.mtp_states import Segment, States
from kvtop_lib.models.trunk import linear_dtype

STEPS = 3


@dataclass(frozen=True)
class Shared:
    """What the draft layer borrows from the trunk.

    Attributes
    ----------
    embedding : float32, shape (vocabulary, hidden)
    vocabulary : int64, shape (draft vocabulary,)
        Token ids that the draft layer can propose (the token map).
    start, end : int
        Ids of `<|im_start|>` and `<|im_end|>`.
    """

    embedding: torch.Tensor
    vocabulary: torch.Tensor
    start: int = 1
    end: int = 2

    def head(self) -> torch.Tensor:
        """The trunk's head restricted to the draft vocabulary."""
        return self.embedding[self.vocabulary]


@torch.inference_mode()
def correct(head: EagleHead, batch: Batch, shared: Shared, steps: int = STEPS) -> torch.Tensor:
    """Whether step s at each position names the trunk's choice over its whole vocabulary.

    Returns
    -------
    bool Tensor, shape (steps, n)
    """
    dtype, weight = linear_dtype(), shared.head()
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        outputs = head(shared.embedding[batch.next_token], batch.hidden, batch.lengths, steps)
    said = [shared.vocabulary[F.linear(out.float(), weight).argmax(-1)] for out in outputs]
    return torch.stack([tokens == batch.greedy for tokens in said])


def accepted_lengths(right: torch.Tensor, answer: torch.Tensor, depth: int) -> list[int]:
    """Accepted drafts of each verify step when answers are decoded with chains of `depth`.

    A chain whose first input is token t + 1 is right in its step s when `right[s - 1, t + s - 1]`;
    it ends at the first wrong step or at the end of the answer. The next chain starts after the
    tokens that this one gave.

    Parameters
    ----------
    right : bool, shape (steps, n)
        From `correct`, of one session.
    answer : bool, shape (n,)
        Positions at which a server would draft.
    """
    counts, t, n = [], 0, len(answer)
    rows, drafting = right.tolist(), answer.tolist()
    while t < n:
        if not drafting[t]:
            t += 1
            continue
        accepted = 0
        while accepted < depth and t + accepted < n and drafting[t + accepted]:
            if not rows[accepted][t + accepted]:
                break
            accepted += 1
        counts.append(accepted)
        t += accepted + 1
    return counts


def evaluate(
    head: EagleHead, states: States, segments: list[Segment], shared: Shared
) -> dict[str, float | int | list[float]]:
    """Figures of one domain.

    Returns
    -------
    dict with
        answer_positions, text_positions : counts
        agreement : per step, over positions of answers (steps after the first: given that the
            chain was right so far)
        text_agreement : first step, over text that users and tools wrote
        coverage : share of the trunk's choices inside answers that the draft vocabulary holds
        accept_len_w2, accept_len_w3, accept_len_w4 : 1 + accepted drafts per verify step
    """
    hits, tries = torch.zeros(STEPS), torch.zeros(STEPS)
    text_hits = text = covered = 0
    lengths: dict[int, list[int]] = {depth: [] for depth in range(1, STEPS + 1)}
    known = torch.zeros(len(shared.embedding), dtype=torch.bool)
    known[shared.vocabulary] = True
    for group in batches(segments, 4096, seed=0):
        batch = make_batch(states, group, shared.start, shared.end)
        right = correct(head, batch, shared)
        alive = batch.answer.clone()
        for step in range(STEPS):
            tried = alive & batch.answer
            tries[step] += tried.sum()
            hits[step] += (tried & right[step]).sum()
            alive = torch.cat((torch.zeros(1, dtype=torch.bool), (tried & right[step])[:-1]))
        text += int(batch.text.sum())
        text_hits += int((batch.text & right[0]).sum())
        covered += int(known[batch.greedy[batch.answer]].sum())
        parts = zip(right.split(batch.lengths, 1), batch.answer.split(batch.lengths), strict=True)
        for one, answer in parts:
            for depth, counts in lengths.items():
                counts += accepted_lengths(one, answer, depth)
    figures = {
        "answer_positions": int(tries[0]),
        "text_positions": text,
        "agreement": [round(float(r), 4) for r in hits / tries.clamp(min=1)],
        "text_agreement": round(text_hits / max(1, text), 4),
        "coverage": round(covered / max(1, int(tries[0])), 4),
    }
    for depth, counts in lengths.items():
        figures[f"accept_len_w{depth + 1}"] = round(1 + sum(counts) / max(1, len(counts)), 4)
    return figures

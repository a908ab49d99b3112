"""Simulated drafting against chains recomputed from scratch and a table counted by hand."""

from __future__ import annotations

import pytest
import torch
from test_tiny_glm_model import SMALL, small_model, some_tokens

from kvtop_lib.models.tiny_glm_report import looped
from kvtop_lib.models.tiny_glm_simulate import Acceptance, count_accepted, draft_chains


@torch.no_grad()
def slow_chain(model, tokens: torch.Tensor, row: int, depth: int) -> list[int]:
    """Drafts of one row: the whole NextN sequence again for every step, no cache."""
    hidden = model.hidden(tokens[None, : row + 1])
    ahead, drafts = tokens[None, 1 : row + 2], []
    for _ in range(depth):
        out = model.draft_hidden(ahead, hidden)[:, -1:]
        draft = model.logits(out).argmax(-1)
        drafts.append(int(draft))
        ahead, hidden = torch.cat([ahead, draft], 1), torch.cat([hidden, out], 1)
    return drafts


def test_draft_chains_equal_recomputed_ones():
    model, tokens = small_model(), some_tokens(24, SMALL.vocab_size)[0]
    chains = draft_chains(model, tokens, 3)
    assert chains.shape == (23, 3)
    expected = [slow_chain(model, tokens, row, 3) for row in range(23)]
    assert chains.tolist() == expected
    assert len({tuple(row) for row in expected}) > 5  # not one draft everywhere


def test_accepted_drafts_counted_by_hand():
    # Prompt of two tokens (positions 0, 1), output 12 13 14 15 16 17 at positions 2-7. Row r drafts
    # positions r+2, r+3. Prefill gives 12; step 1 (row 1) drafts 13 14: both right, 15 is free.
    # Step 2 (row 4) drafts 99 17: the second does not count, 16 is free.
    # Step 3 (row 5) drafts 17 and one past the end: one accepted.
    tokens = torch.tensor([10, 11, 12, 13, 14, 15, 16, 17])
    drafts = torch.full((7, 2), -1)
    drafts[1], drafts[4] = torch.tensor([13, 14]), torch.tensor([99, 17])
    drafts[5] = torch.tensor([17, 18])
    counted = count_accepted(drafts, tokens, prompt_tokens=2)
    assert counted == Acceptance((1, 1, 1))
    assert (counted.verify_steps, counted.accept_len) == (3, 2.0)
    # Were 18 known to follow, the last step would accept both of its drafts.
    longer = torch.cat([tokens, torch.tensor([18])])
    assert count_accepted(drafts, longer, prompt_tokens=2, beyond=1) == Acceptance((1, 0, 2))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([7] * 40, True),
        ([1, 2, 3] * 14, True),
        (list(range(20)) + [1, 2] * 16, True),
        (list(range(40)), False),
        ([1, 2] * 10, False),  # too short to tell
        ([1, 2] * 15 + [1, 3], False),
    ],
)
def test_loops_are_recognised(output, expected):
    assert looped(output) is expected

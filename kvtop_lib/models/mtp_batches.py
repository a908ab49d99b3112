"""Packed batches of whole sessions, and which positions a batch is trained on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvtop_lib.models.mtp_states import Segment, States


@dataclass(frozen=True)
class Batch:
    """Positions t of whole sessions, but the last of each (it has no t + 1).

    Attributes
    ----------
    next_token : int64, shape (n,)
        Token t + 1.
    hidden, target : float32, shape (n, hidden)
        Trunk's states at t and at t + 1.
    greedy : int64, shape (n,)
        The trunk's choice after t + 1: what the draft layer has to say.
    answer : bool, shape (n,)
        Token t + 1 was generated and does not end an answer: a server would draft here.
    text : bool, shape (n,)
        Token t + 1 belongs to what a user wrote or a tool read (not to the system prompt).
    lengths : list of int
    """

    next_token: torch.Tensor
    hidden: torch.Tensor
    target: torch.Tensor
    greedy: torch.Tensor
    answer: torch.Tensor
    text: torch.Tensor
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.next_token)

    def depth(self) -> torch.Tensor:
        """Position of each row within its session."""
        return torch.cat([torch.arange(n) for n in self.lengths])


def make_batch(states: States, segments: list[Segment], start: int, end: int) -> Batch:
    """Pack sessions; `start` and `end` are the ids of the chat's special tokens."""
    rows = torch.cat([torch.arange(s.start, s.start + s.length - 1) for s in segments])
    after = rows + 1
    tokens = states.tokens[after]
    answer = states.output[after] & (tokens != end)
    user = torch.cat([_after_second(states, s, start) for s in segments])
    return Batch(
        tokens, states.hidden[rows].float(), states.hidden[after].float(), states.greedy[after],
        answer, user & ~states.output[after], [s.length - 1 for s in segments],
    )  # fmt: skip


def _after_second(states: States, segment: Segment, start: int) -> torch.Tensor:
    """True where token t + 1 lies past the system prompt (after the second `<|im_start|>`)."""
    tokens = states.tokens[segment.start + 1 : segment.start + segment.length]
    return (tokens == start).cumsum(0) >= 1  # the first one opens the session, at position 0


def batches(segments: list[Segment], tokens_per_batch: int, seed: int) -> Iterator[list[Segment]]:
    """One pass over `segments` in a random order, in groups of about `tokens_per_batch`."""
    order = list(segments)
    random.Random(seed).shuffle(order)
    group, size = [], 0
    for segment in order:
        group.append(segment)
        size += segment.length - 1
        if size >= tokens_per_batch:
            yield group
            group, size = [], 0
    if group:
        yield group

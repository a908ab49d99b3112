"""Greedy generation with continuous batching on the bare model."""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator

import torch

from .bare_model import BareLlama
from .kernels import Batch


@dataclasses.dataclass
class Sequence:
    """One prompt and what became of it.

    Attributes
    ----------
    name
        The prompt's id.
    prompt, output
        Token ids.
    states
        Final-normed hidden states, one float16 or bfloat16 [H] per position from
        `first_position` on; the last output token has none (nothing follows it).
    stopped
        Whether an end-of-sequence token ended it (it is part of `output`).
    """

    name: str
    prompt: list[int]
    output: list[int] = dataclasses.field(default_factory=list)
    states: list[torch.Tensor] = dataclasses.field(default_factory=list)
    first_position: int = 0
    stopped: bool = False
    row: int = -1
    slots: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self.prompt) + len(self.output)


class Generator:
    """Decodes up to `width` sequences at a time and refills places as they become free."""

    def __init__(
        self,
        model: BareLlama,
        width: int,
        max_new_tokens: int,
        *,
        tail_tokens: int = 64,
        stop_ids: Iterable[int] = (),
        keep_states: bool = True,
        state_dtype: torch.dtype = torch.bfloat16,
        prefill_tokens: int = 512,
    ):
        self.model, self.width, self.max_new = model, width, max_new_tokens
        self.tail, self.stop_ids = tail_tokens, frozenset(stop_ids)
        self.keep, self.state_dtype, self.prefill_tokens = keep_states, state_dtype, prefill_tokens
        context = min(model.config["max_position_embeddings"], model.pool_tokens)
        self.req_to_token = torch.zeros(width, context, dtype=torch.int32)
        self.free_rows = list(range(width))
        self.free_slots = torch.arange(model.pool_tokens, dtype=torch.int32)
        self.running: list[Sequence] = []

    def run(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield each sequence when it is done, in order of completion."""
        waiting = deque()
        source = iter(sequences)
        while True:
            while len(waiting) < self.width and (item := next(source, None)) is not None:
                waiting.append(item)
            if not waiting and not self.running:
                return
            admitted = self._admit(waiting)
            if admitted:
                yield from self._advance(admitted, self._prefill(admitted))
            elif self.running:
                yield from self._advance(list(self.running), self._decode())
            else:
                raise SystemExit(
                    f"prompt {waiting[0].name!r} of {len(waiting[0].prompt)} tokens "
                    f"does not fit: enlarge the pool or shorten it"
                )

    def _admit(self, waiting: deque) -> list[Sequence]:
        admitted, tokens = [], 0
        while waiting and self.free_rows:
            item = waiting[0]
            need = len(item.prompt) + self.max_new
            if need > min(self.free_slots.numel(), self.req_to_token.shape[1]):
                break
            if admitted and tokens + len(item.prompt) > self.prefill_tokens:
                break
            waiting.popleft()
            tokens += len(item.prompt)
            item.row = self.free_rows.pop()
            item.slots, self.free_slots = self.free_slots[:need], self.free_slots[need:]
            self.req_to_token[item.row, :need] = item.slots
            item.first_position = max(0, len(item.prompt) - self.tail)
            admitted.append(item)
        self.running += admitted
        return admitted

    def _batch(self, sequences: list[Sequence], extend: list[int] | None) -> Batch:
        return Batch(
            self.req_to_token,
            torch.tensor([s.row for s in sequences]),
            torch.tensor([s.length for s in sequences]),
            None if extend is None else torch.tensor(extend),
        )

    def _prefill(self, admitted: list[Sequence]) -> torch.Tensor:
        lengths = [len(s.prompt) for s in admitted]
        ids = torch.tensor([t for s in admitted for t in s.prompt])
        positions = torch.cat([torch.arange(n) for n in lengths])
        slots = torch.cat([s.slots[:n] for s, n in zip(admitted, lengths, strict=True)]).long()
        hidden = self.model.forward(ids, positions, slots, self._batch(admitted, lengths))
        if self.keep:
            start = 0
            for s, n in zip(admitted, lengths, strict=True):
                kept = hidden[start + s.first_position : start + n - 1]
                s.states += list(kept.to(self.state_dtype))
                start += n
        return hidden[torch.tensor(lengths).cumsum(0) - 1]

    def _decode(self) -> torch.Tensor:
        ids = torch.tensor([s.output[-1] for s in self.running])
        positions = torch.tensor([s.length - 1 for s in self.running])
        rows = torch.tensor([s.row for s in self.running])
        slots = self.req_to_token[rows, positions].long()
        return self.model.forward(ids, positions, slots, self._batch(self.running, None))

    def _advance(self, sequences: list[Sequence], hidden: torch.Tensor) -> Iterator[Sequence]:
        tokens = self.model.next_tokens(hidden.contiguous()).tolist()
        kept = hidden.to(self.state_dtype) if self.keep else None
        for i, (s, token) in enumerate(zip(sequences, tokens, strict=True)):
            if self.keep:
                s.states.append(kept[i])
            s.output.append(token)
            s.stopped = token in self.stop_ids
            if s.stopped or len(s.output) >= self.max_new:
                self.running.remove(s)
                self.free_rows.append(s.row)
                self.free_slots = torch.cat((self.free_slots, s.slots))
                yield s

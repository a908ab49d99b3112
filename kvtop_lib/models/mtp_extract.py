"""Let the trunk answer training sessions greedily and keep its hidden states.

`python -m kvtop_lib.models.mtp_extract --model DIR --prompts F --out DIR --part 1/2` works on
every second session; a second call goes on where the first one stopped. Run one process per core.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch

from kvtop_lib.models.chat import Chat
from kvtop_lib.models.mtp_prompts import TrainingSession, read_sessions
from kvtop_lib.models.mtp_states import Segment, States, concatenate, session_ids
from kvtop_lib.models.trunk import Trunk
from kvtop_lib.trace.loops import ends_in_loop

POSITIONS = 960  # of a session
SHARD_POSITIONS = 16_384


class Lane:
    """One session in one slot of the trunk's cache."""

    def __init__(self, trunk: Trunk, chat: Chat, slot: int, session: TrainingSession):
        self.trunk, self.chat, self.slot, self.session = trunk, chat, slot, session
        self.tokens: list[int] = []
        self.output: list[bool] = []
        self.hidden: list[torch.Tensor] = []
        self.greedy: list[torch.Tensor] = []
        self.turn, self.answer_start = 0, 0
        self.pending = chat.opening(session.turns[0])  # tokens that the trunk has not seen
        self.prefill()

    def prefill(self) -> None:
        """Show the trunk the pending prompt; leaves the first token of the answer pending."""
        start = len(self.tokens)
        hidden = self.trunk.prefill(self.slot, torch.tensor(self.pending), start)
        self.output += [False] * (len(self.pending) - len(self.output) + start)
        self.tokens += self.pending
        self.answer_start = len(self.tokens)
        self.keep(hidden, self.trunk.argmax(hidden))

    def keep(self, hidden: torch.Tensor, greedy: torch.Tensor) -> None:
        """Record states of new positions; the last one's argmax becomes pending."""
        self.hidden.append(hidden.bfloat16())
        self.greedy.append(greedy)
        self.pending = [int(greedy[-1])]

    def decoded(self, hidden: torch.Tensor, greedy: torch.Tensor) -> None:
        """Record the state of the pending token, now seen."""
        self.tokens += self.pending
        self.output.append(True)
        self.keep(hidden, greedy)

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.answer_start :] + self.pending

    def answered(self) -> bool:
        """Whether the answer of this turn is complete (its last token is pending)."""
        full = len(self.answer) >= self.session.max_output_tokens
        return full or self.pending[0] == self.chat.end

    def goes_on(self) -> bool:
        """Start the next turn if this one is answered; False when the session is over."""
        while self.answered():  # an answer may be empty, and so complete at once
            if not self.next_turn():
                return False
        return True

    def next_turn(self) -> bool:
        """Append the next turn's prompt; False when there is none or the answer is a loop."""
        answer = self.answer
        looped = ends_in_loop(self.chat.tokenizer.decode(answer))
        if looped:
            self.output[self.answer_start :] = [False] * (len(answer) - 1)
        self.turn += 1
        if looped or self.turn == len(self.session.turns):
            return False
        prompt = self.pending + self.chat.later(self.session.turns[self.turn], answer)
        if len(self.tokens) + len(prompt) + self.session.max_output_tokens > POSITIONS:
            return False
        self.output.append(True)  # the answer's last token, which opens this prefill
        self.pending = prompt
        self.prefill()
        return True

    def states(self) -> States:
        s = self.session
        segment = Segment(s.id, s.domain, s.task, s.heldout, 0, len(self.tokens))
        return States(
            torch.tensor(self.tokens), torch.cat(self.greedy), torch.tensor(self.output),
            torch.cat(self.hidden), (segment,),
        )  # fmt: skip


def answer_sessions(
    trunk: Trunk, chat: Chat, sessions: list[TrainingSession], slots: int
) -> Iterator[States]:
    """Answer all sessions in `slots` lanes at once; yields each as it ends."""
    waiting = deque(sessions)
    lanes: list[Lane] = []
    free = list(range(slots))
    while waiting or lanes:
        while free and waiting:
            lanes.append(Lane(trunk, chat, free.pop(), waiting.popleft()))
        going = [lane for lane in lanes if lane.goes_on()]
        for lane in lanes:
            if lane not in going:
                free.append(lane.slot)
                yield lane.states()
        lanes = going
        if lanes:
            _decode(trunk, lanes)


def _decode(trunk: Trunk, lanes: list[Lane]) -> None:
    slots = torch.tensor([lane.slot for lane in lanes])
    tokens = torch.tensor([lane.pending[0] for lane in lanes])
    hidden = trunk.decode(slots, tokens, torch.tensor([len(lane.tokens) for lane in lanes]))
    greedy = trunk.argmax(hidden)
    for row, lane in enumerate(lanes):
        lane.decoded(hidden[row : row + 1], greedy[row : row + 1])


def extract(model: Path, prompts: Path, out: Path, part: int, parts: int, slots: int) -> None:
    """Write shards `states-<part>-<number>.safetensors` of this part's sessions to `out`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    done = set(session_ids(out))
    mine = [s for s in read_sessions(prompts)[part::parts] if s.id not in done]
    trunk, chat = Trunk(model, slots, POSITIONS), Chat(model)
    collected: list[States] = []
    positions, number, began = 0, len(list(out.glob(f"states-{part}-*"))), time.monotonic()

    def flush() -> None:
        nonlocal number
        if collected:
            concatenate(collected).save(out / f"states-{part}-{number:04d}.safetensors")
            collected.clear()
            number += 1

    for i, states in enumerate(answer_sessions(trunk, chat, mine, slots), 1):
        collected.append(states)
        positions += len(states)
        if sum(map(len, collected)) >= SHARD_POSITIONS:
            flush()
            speed = positions / (time.monotonic() - began)
            print(f"{i}/{len(mine)} sessions, {positions} positions, {speed:.0f}/s", flush=True)
    flush()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th session from the i-th")
    parser.add_argument("--slots", type=int, default=64)
    args = parser.parse_args(argv)
    part, parts = map(int, args.part.split("/"))
    extract(args.model, args.prompts, args.out, part, parts, args.slots)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

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
from kvtop_lib.models.mtp_states import Segment, States, concatenate, stored_segments
from kvtop_lib.models.trunk import Trunk
from kvtop_lib.trace.loops import ends_in_loop

POSITIONS = 960  # of a session
SHARD_POSITIONS = 16_384
LOOP_CHECK_TOKENS = 24


class Lane:
    """One session in one slot of the trunk's cache.

    A turn whose answer ends in a loop is taken back, prompt and all, and the session goes on with
    the next turn: contexts then look like those of sessions that are worth serving.
    """

    def __init__(self, trunk: Trunk, chat: Chat, slot: int, session: TrainingSession):
        self.trunk, self.chat, self.slot, self.session = trunk, chat, slot, session
        self.tokens: list[int] = []
        self.output: list[bool] = []
        self.hidden: list[torch.Tensor] = []  # of each forward pass
        self.greedy: list[torch.Tensor] = []
        self.turn = 0
        self.begin(chat.opening(session.turns[0]), [])

    def begin(self, prompt: list[int], before: list[int]) -> None:
        """Show the trunk a turn's prompt, led by the last token of the answer before it."""
        self.before = before
        self.mark = (len(self.tokens), len(self.hidden))
        seen = before[-1:] + prompt
        hidden = self.trunk.prefill(self.slot, torch.tensor(seen), len(self.tokens))
        self.output += [True] * len(before[-1:]) + [False] * len(prompt)
        self.tokens += seen
        self.answer_start = len(self.tokens)
        self.keep(hidden, self.trunk.argmax(hidden))

    def keep(self, hidden: torch.Tensor, greedy: torch.Tensor) -> None:
        """Record states of new positions; the last one's argmax becomes pending."""
        self.hidden.append(hidden.bfloat16())
        self.greedy.append(greedy)
        self.pending = int(greedy[-1])  # a token that the trunk has not seen yet

    def decoded(self, hidden: torch.Tensor, greedy: torch.Tensor) -> None:
        """Record the state of the pending token, now seen."""
        self.tokens.append(self.pending)
        self.output.append(True)
        self.keep(hidden, greedy)

    @property
    def answer(self) -> list[int]:
        return [*self.tokens[self.answer_start :], self.pending]

    def looped(self) -> bool:
        return ends_in_loop(self.chat.tokenizer.decode(self.answer))

    def answered(self) -> bool:
        """Whether the answer of this turn is complete (its last token is pending) or hopeless."""
        length = len(self.answer)
        full = length >= self.session.max_output_tokens or self.pending == self.chat.end
        return full or (length % LOOP_CHECK_TOKENS == 0 and self.looped())

    def goes_on(self) -> bool:
        """Start the next turn if this one is answered; False when the session is over."""
        while self.answered():  # an answer may be empty, and so complete at once
            if not self.next_turn():
                return False
        return True

    def next_turn(self) -> bool:
        """Begin the next turn; False when there is none or no room for it."""
        answer = self.answer
        if self.looped():
            self.take_back()
            answer = self.before
            if not answer:
                return False
        self.turn += 1
        if self.turn == len(self.session.turns):
            return False
        prompt = self.chat.later(self.session.turns[self.turn], answer)
        if len(self.tokens) + len(prompt) + self.session.max_output_tokens >= POSITIONS:
            return False
        self.begin(prompt, answer)
        return True

    def take_back(self) -> None:
        """Forget the current turn."""
        tokens, passes = self.mark
        del self.tokens[tokens:], self.output[tokens:], self.hidden[passes:], self.greedy[passes:]

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
    """Answer all sessions in `slots` lanes at once; yields each as it ends, unless it is empty."""
    waiting = deque(sessions)
    lanes: list[Lane] = []
    free = list(range(slots))
    while waiting or lanes:
        while free and waiting:
            session = waiting.popleft()
            if len(chat.opening(session.turns[0])) < POSITIONS:  # dense text can be longer
                lanes.append(Lane(trunk, chat, free.pop(), session))
        going = [lane for lane in lanes if lane.goes_on()]
        for lane in lanes:
            if lane not in going:
                free.append(lane.slot)
                if lane.tokens:
                    yield lane.states()
        lanes = going
        if lanes:
            _decode(trunk, lanes)


def _decode(trunk: Trunk, lanes: list[Lane]) -> None:
    slots = torch.tensor([lane.slot for lane in lanes])
    tokens = torch.tensor([lane.pending for lane in lanes])
    hidden = trunk.decode(slots, tokens, torch.tensor([len(lane.tokens) for lane in lanes]))
    greedy = trunk.argmax(hidden)
    for row, lane in enumerate(lanes):
        lane.decoded(hidden[row : row + 1], greedy[row : row + 1])


def extract(
    model: Path, prompts: Path, out: Path, part: int, parts: int, slots: int, minutes: float
) -> None:
    """Write shards `states-<part>-<number>.safetensors` of this part's sessions to `out`.

    Ends after `minutes`; sessions that are under way then are left for the next call.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    done = {segment.id for segment in stored_segments(out)}
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
        if time.monotonic() - began > 60 * minutes:
            break
    flush()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th session from the i-th")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so long")
    args = parser.parse_args(argv)
    part, parts = map(int, args.part.split("/"))
    extract(args.model, args.prompts, args.out, part, parts, args.slots, args.minutes)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

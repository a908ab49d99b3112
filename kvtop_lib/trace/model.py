"""Sessions of recorded turns: the one in-memory form of every trace."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.blocks import Blocks, shared_tokens

FORMAT = "kvtop-sessions"
VERSION = 2
"""Version 2 adds block identities, arrival times and whole prompts; a trace without them is
written as version 1, so that its bytes and fingerprint are what they were."""


@dataclass(frozen=True)
class Turn:
    """One request of a session and what the recorded model answered.

    ``messages`` are only the messages that are new in this turn, unless ``whole``. A turn of a
    trace without text has ``blocks`` instead, which always are those of the whole prompt.
    """

    messages: tuple[dict[str, str], ...]
    output: str | None  # None: the trace does not tell its text
    output_tokens: int
    finish_reason: str  # "stop", "length" or "unknown"
    prompt_tokens: int  # whole history, as the recording server counted it
    think_s: float = 0.0  # between the previous answer and this request
    looped: bool = False  # the output ends in a loop (kvtop_lib.trace.loops)
    blocks: Blocks | None = None
    at_s: float | None = None  # intended time of sending, from the start of the trace
    whole: bool = False  # the messages are the whole prompt, earlier turns are not in it

    @property
    def version(self) -> int:
        """The first version of the stored form that can hold this turn."""
        new = self.blocks or self.whole or self.at_s is not None or self.output is None
        return 2 if new or self.finish_reason == "unknown" else 1

    def to_dict(self) -> dict[str, Any]:
        """The turn as stored in a session line."""
        row: dict[str, Any] = {
            "messages": list(self.messages),
            "output": self.output,
            "output_tokens": self.output_tokens,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "think_s": self.think_s,
            "looped": self.looped,
        }
        if self.blocks:
            b = self.blocks
            row["blocks"] = {"ids": list(b.ids), "size": b.size, "scope": b.scope}
        if self.at_s is not None:
            row["at_s"] = self.at_s
        return {**row, "whole": True} if self.whole else row


class TextMaker(Protocol):
    """Makes text of block identities and lengths (kvtop_lib.trace.text)."""

    def prompt(self, session: Session, k: int) -> str:
        """Text of the whole prompt of turn ``k``."""

    def answer(self, session: Session, k: int) -> str:
        """Text of as many tokens as the answer of turn ``k`` had."""


@dataclass(frozen=True)
class Session:
    """A conversation, played turn by turn on its recorded history."""

    id: str
    task: str
    turns: tuple[Turn, ...]
    withdrawn: int = 0  # answers that were taken back while recording (kvtop_lib.trace.record)
    text: TextMaker | None = field(default=None, compare=False, repr=False)

    @property
    def needs_text(self) -> bool:
        """Whether prompts are made of identities or lengths, which needs a tokenizer."""
        return any(t.blocks for t in self.turns) or any(t.output is None for t in self.turns[:-1])

    @property
    def at_s(self) -> float | None:
        """Intended start of the session, in seconds from the start of the trace."""
        return self.turns[0].at_s

    def request_messages(self, k: int) -> list[dict[str, str]]:
        """Chat messages of the request of turn ``k`` (0-based).

        All messages of turns 0..k, with the recorded outputs as assistant messages between:
        every arm sees the same prompt, whatever it answered before. A turn of block identities
        becomes one user message; earlier answers are already among its blocks.

        Raises
        ------
        KvtopError
            The trace tells no text and got none (``Trace.with_text``).
        """
        if not 0 <= k < len(self.turns):
            raise IndexError(f"session {self.id} has turns 0..{len(self.turns) - 1}, not {k}")
        if self.turns[k].blocks:
            return [{"role": "user", "content": self._text().prompt(self, k)}]
        first = max((j for j in range(k + 1) if self.turns[j].whole), default=0)
        messages: list[dict[str, str]] = []
        for j in range(first, k):
            messages += [dict(m) for m in self.turns[j].messages]
            output = self.turns[j].output
            answer = self._text().answer(self, j) if output is None else output
            messages.append({"role": "assistant", "content": answer})
        return messages + [dict(m) for m in self.turns[k].messages]

    def _text(self) -> TextMaker:
        if self.text is None:
            raise KvtopError(
                f"session {self.id} tells token blocks or lengths and no text; name the served "
                "model's tokenizer (--tokenizer), of which text of that length is made."
            )
        return self.text

    @property
    def total_tokens(self) -> int:
        """Tokens of the last prompt and its output: the KV that the session needs at its end."""
        return self.turns[-1].prompt_tokens + self.turns[-1].output_tokens

    def follows(self, k: int) -> bool:
        """Whether turn ``k`` is the first or its prompt begins with all of the prior one's."""
        now = self.turns[k]
        return not (now.blocks or now.whole or (k > 0 and self.turns[k - 1].blocks))

    def shared_tokens(self, k: int) -> int:
        """Prompt tokens of turn ``k`` that turn ``k - 1`` has left in a prefix cache.

        Of recorded messages the whole prior prompt and its answer; of block identities the
        leading blocks that both prompts have, and no answer: it is among the prompt's blocks.
        """
        if k == 0:
            return 0
        before, now = self.turns[k - 1], self.turns[k]
        if now.blocks is None:
            reach = 0 if now.whole or before.blocks else before.prompt_tokens + before.output_tokens
            return min(reach, now.prompt_tokens)
        if before.blocks is None:
            return 0
        return shared_tokens(now.blocks, now.prompt_tokens, before.blocks, before.prompt_tokens)

    def new_prefill_tokens(self, k: int) -> int:
        """Prompt tokens of turn ``k`` that no earlier turn of this session has computed."""
        return self.turns[k].prompt_tokens - self.shared_tokens(k)

    def to_dict(self) -> dict[str, Any]:
        """The session as stored, one JSON line."""
        return {
            "id": self.id,
            "task": self.task,
            "withdrawn": self.withdrawn,
            "turns": [t.to_dict() for t in self.turns],
        }


@dataclass(frozen=True)
class Trace:
    """A header (what recorded it, with which settings) and its sessions in file order."""

    name: str
    recorded_with: dict[str, Any] = field(default_factory=dict)
    sessions: tuple[Session, ...] = ()

    @property
    def requests(self) -> int:
        """Number of turns over all sessions."""
        return sum(len(s.turns) for s in self.sessions)

    @property
    def needs_text(self) -> bool:
        """Whether it tells block identities or lengths, of which `with_text` makes text."""
        return any(s.needs_text for s in self.sessions)

    def with_text(self, tokenizer: Any) -> Trace:
        """This trace, able to make text where it tells none, with exact token counts.

        ``tokenizer`` is a ``tokenizer.json``, its folder, or a ``tokenizers.Tokenizer``; see
        `kvtop_lib.trace.text.with_text`. A trace with all its text is returned as it is.
        """
        from kvtop_lib.trace.text import with_text

        return with_text(self, tokenizer)

    def lines(self) -> list[str]:
        """The trace in its stored form: the header's line, then one line per session."""
        version = max((t.version for s in self.sessions for t in s.turns), default=1)
        header = {
            "format": FORMAT,
            "version": version,
            "name": self.name,
            "recorded_with": self.recorded_with,
        }
        rows = [header, *(s.to_dict() for s in self.sessions)]
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the stored form, which is what ``sha256sum`` prints for the written file."""
        return hashlib.sha256("".join(line + "\n" for line in self.lines()).encode()).hexdigest()

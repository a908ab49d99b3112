"""Sessions of recorded turns: the one in-memory form of every trace."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

FORMAT = "kvtop-sessions"
VERSION = 1


@dataclass(frozen=True)
class Turn:
    """One request of a session and what the recorded model answered.

    ``messages`` are only the messages that are new in this turn.
    """

    messages: tuple[dict[str, str], ...]
    output: str
    output_tokens: int
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int  # whole history, as the recording server counted it
    think_s: float = 0.0  # between the previous answer and this request
    looped: bool = False  # the output ends in a loop (kvtop_lib.trace.loops)

    def to_dict(self) -> dict[str, Any]:
        """The turn as stored in a session line."""
        return {
            "messages": list(self.messages),
            "output": self.output,
            "output_tokens": self.output_tokens,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "think_s": self.think_s,
            "looped": self.looped,
        }


@dataclass(frozen=True)
class Session:
    """A conversation, played turn by turn on its recorded history."""

    id: str
    task: str
    turns: tuple[Turn, ...]
    withdrawn: int = 0  # answers that were taken back while recording (kvtop_lib.trace.record)

    def request_messages(self, k: int) -> list[dict[str, str]]:
        """Chat messages of the request of turn ``k`` (0-based).

        All messages of turns 0..k, with the recorded outputs as assistant messages between:
        every arm sees the same prompt, whatever it answered before.
        """
        if not 0 <= k < len(self.turns):
            raise IndexError(f"session {self.id} has turns 0..{len(self.turns) - 1}, not {k}")
        messages: list[dict[str, str]] = []
        for turn in self.turns[:k]:
            messages += [dict(m) for m in turn.messages]
            messages.append({"role": "assistant", "content": turn.output})
        return messages + [dict(m) for m in self.turns[k].messages]

    @property
    def total_tokens(self) -> int:
        """Tokens of the last prompt and its output: the KV that the session needs at its end."""
        return self.turns[-1].prompt_tokens + self.turns[-1].output_tokens

    def new_prefill_tokens(self, k: int) -> int:
        """Prompt tokens of turn ``k`` that no earlier turn of this session has computed."""
        if k == 0:
            return self.turns[0].prompt_tokens
        before = self.turns[k - 1]
        return max(0, self.turns[k].prompt_tokens - before.prompt_tokens - before.output_tokens)

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

    def lines(self) -> list[str]:
        """The trace in its stored form: the header's line, then one line per session."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "recorded_with": self.recorded_with,
        }
        rows = [header, *(s.to_dict() for s in self.sessions)]
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the stored form, which is what ``sha256sum`` prints for the written file."""
        return hashlib.sha256("".join(line + "\n" for line in self.lines()).encode()).hexdigest()

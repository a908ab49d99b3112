"""JSONL of requests with block identities: Mooncake, its extended form, and Qwen-Bailian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvtop_lib.trace.agent import estimate_tokens
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import Session, Turn
from kvtop_lib.trace.readers.chat import alternating, answer_tokens, plain
from kvtop_lib.trace.readers.fields import (
    Bad,
    count,
    fit_blocks,
    get,
    ids,
    name,
    record,
    seconds,
)  # fmt: skip
from kvtop_lib.trace.readers.rows import Rows

MOONCAKE_BLOCK, QWEN_BLOCK = 512, 16
NO_ANSWER = "requests with an answer of 0 tokens"


@dataclass(frozen=True)
class Request:
    """One row: a turn that still lacks its place in a session."""

    turn: Turn
    key: str | None  # session, or the request's own name
    parent: str | None = None
    delay: bool = False  # think_s is told


def is_mooncake(row: dict[str, Any]) -> bool:
    """Whether a record is a request of the plain or the extended form."""
    told = row.keys() & {"timestamp", "delay", "session_id", "output_length"}
    return bool(told and row.keys() & {"input_length", "text_input", "messages"})


def is_qwen(row: dict[str, Any]) -> bool:
    """Whether a record is a request of a Qwen-Bailian trace."""
    return row.keys() >= {"chat_id", "parent_chat_id", "input_length"}


def read_mooncake(rows: Rows) -> list[Session]:
    """A session per ``session_id``, or per row without one."""
    groups: dict[str, list[Request]] = {}
    for line, request in rows.each(_mooncake):
        if request is None:
            rows.left_out[NO_ANSWER] += 1
        else:
            groups.setdefault(request.key or rows.line_id(line), []).append(request)
    return [Session(key, "request", _chain(group)) for key, group in groups.items()]


def read_qwen(rows: Rows) -> list[Session]:
    """A session per chain of requests; the first answer to a request goes on, others branch off."""
    chains: list[list[Request]] = []
    ends: dict[str, list[Request]] = {}  # chain by the name of its last request
    seen: set[str] = set()
    for line, request in rows.each(_qwen):
        if request.key in seen:
            rows.fault(line, f"the chat_id {request.key!r:.40} occurs twice")
            continue
        seen.add(request.key)
        chain = ends.pop(request.parent, None)
        if chain is None:
            chains.append(chain := [])
        chain.append(request)
        ends[request.key] = chain
    silent = sum(r.turn.output_tokens == 0 for chain in chains for r in chain)
    if silent:
        rows.left_out[NO_ANSWER] += silent
    kept = [[r for r in chain if r.turn.output_tokens] for chain in chains]
    return [Session(f"chat-{chain[0].key}", "chat", _chain(chain)) for chain in kept if chain]


def _mooncake(row: Any) -> Request | None:
    row = record(row)
    messages, whole, told = (), False, 0
    if "messages" in row:
        messages, whole = tuple(alternating([plain(m) for m in get(row, "messages", list)])), True
    elif "text_input" in row:
        messages = ({"role": "user", "content": get(row, "text_input", str)},)
    told = sum(estimate_tokens(m["content"]) for m in messages)
    if "messages" in row and not messages:
        raise Bad('"messages" has no text')
    tokens = count(row, "input_length") if "input_length" in row or not messages else told
    output_tokens = count(row, "output_length", 0)
    blocks = None if messages else _blocks(row, tokens, MOONCAKE_BLOCK)
    at_s = seconds(row, "timestamp", 1000.0) if row.get("timestamp") is not None else None
    turn = Turn(
        messages, None, output_tokens, "unknown", tokens, seconds(row, "delay", 1000.0),
        blocks=blocks, at_s=at_s, whole=whole,
    )  # fmt: skip
    key = name(row, "session_id") if row.get("session_id") is not None else None
    return Request(turn, key, delay=row.get("delay") is not None) if output_tokens else None


def _qwen(row: Any) -> Request:
    row = record(row)
    tokens = count(row, "input_length")
    blocks, output_tokens = _blocks(row, tokens, QWEN_BLOCK), count(row, "output_length", 0)
    at_s = seconds(row, "timestamp")
    turn = Turn((), None, output_tokens, "unknown", tokens, blocks=blocks, at_s=at_s)
    parent = row.get("parent_chat_id")
    parent = None if parent in (None, -1, "-1", "") else name(row, "parent_chat_id")
    return Request(turn, name(row, "chat_id"), parent)


def _blocks(row: dict[str, Any], tokens: int, size: int) -> Blocks:
    size = count(row, "block_size") if "block_size" in row else size
    found = ids(row) if row.get("hash_ids") is not None else []
    return Blocks.of(fit_blocks(found, size, tokens, "the prompt's tokens"), size)


def _chain(requests: list[Request]) -> tuple[Turn, ...]:
    """Turns of one session: waits from the times of sending where no delay is told."""
    turns = [r.turn for r in requests]
    for k in range(1, len(turns)):
        a, b = turns[k - 1].at_s, turns[k].at_s
        if not requests[k].delay and a is not None and b is not None:
            turns[k] = replace(turns[k], think_s=round(max(0.0, b - a), 6))
    return tuple(_unfolded(turns) if any(t.whole for t in turns) else _summed(turns))


def _summed(turns: list[Turn]) -> list[Turn]:
    """Prompts of messages that are only the new ones hold the earlier turns too."""
    tokens = 0
    for k, turn in enumerate(turns):
        if turn.blocks is None:
            tokens += turn.prompt_tokens
            turns[k] = replace(turn, prompt_tokens=tokens)
            tokens += turn.output_tokens
    return turns


def _unfolded(turns: list[Turn]) -> list[Turn]:
    """Whole prompts as new messages where they go on from the prompt before, with its answer."""
    prompts = [list(t.messages) for t in turns]
    for k, turn in enumerate(turns):
        before = prompts[k - 1] if k else []
        rest = prompts[k][len(before) :]
        if k == 0:
            turns[k] = replace(turn, whole=False)
        elif prompts[k][: len(before)] == before and [m["role"] for m in rest[:1]] == ["assistant"]:
            if len(rest) == 1:
                continue  # it asks nothing new
            answer = rest[0]["content"]
            n = turns[k - 1].output_tokens or answer_tokens(answer)
            turns[k - 1] = replace(turns[k - 1], output=answer, output_tokens=n)
            turns[k] = replace(turn, whole=False, messages=tuple(rest[1:]))
    return turns

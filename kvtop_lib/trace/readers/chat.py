"""Conversations with text: OpenAI messages (tau-bench too), SWE-agent ``.traj``, ShareGPT.

Any chat template can take what comes out: a system message at the start, then user and assistant
in turn. Tool results and later system messages become user text, tool calls lines of the answer.
"""

from __future__ import annotations

import json
from typing import Any

from kvtop_lib.trace.agent import CHARS_PER_TOKEN, estimate_tokens
from kvtop_lib.trace.model import Session, Turn
from kvtop_lib.trace.readers.fields import Bad, get, name, record, seconds, text
from kvtop_lib.trace.readers.rows import Rows

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "tool": "user", "function": "user", "observation": "user", "ai": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
    "bing": "assistant", "bard": "assistant", "function_call": "assistant",
}  # fmt: skip
TOOL_ROLES = ("tool", "function", "observation")
LISTS = ("messages", "traj", "history", "conversations")
"""Keys that hold a record's conversation: OpenAI, tau-bench, SWE-agent, ShareGPT."""


def conversation_key(row: dict[str, Any]) -> str | None:
    """The key that holds a record's conversation."""
    return next((key for key in LISTS if isinstance(row.get(key), list)), None)


def plain(message: Any) -> dict[str, str]:
    """A message as role and text; the text is "" when there is none.

    Raises
    ------
    Bad
        It has no known role, or content that is neither text nor text parts.
    """
    message = record(message, "a message")
    own = "role" if "role" in message else "from"
    role = get(message, own, str)
    if role not in ROLES:
        raise Bad(f'"{own}" is {role!r:.40}, which is no known role')
    said = _content(message.get("content", message.get("value")))
    if role in TOOL_ROLES and isinstance(message.get("name"), str):
        said = f"Result of {message['name']}:\n{said}"
    calls = message.get("tool_calls") or ([message] if message.get("function_call") else [])
    if not isinstance(calls, list):
        raise Bad('"tool_calls" must be of type list')
    lines = [said, *map(_call, calls)] if ROLES[role] == "assistant" else [said]
    return {"role": ROLES[role], "content": text("\n".join(x for x in lines if x), "content")}


def _content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Bad(f'"content" must be text or a list of parts, not {type(value).__name__}')
    parts = [record(part, "a part of the content") for part in value]
    return "\n".join(get(p, "text", str) for p in parts if p.get("type", "text") == "text")


def _call(call: Any) -> str:
    """A tool call as one line: ``name(arguments)``."""
    call = record(call, "a tool call")
    call = record(call.get("function") or call.get("function_call") or call, "a tool call")
    arguments = call.get("arguments", "")
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{get(call, 'name', str)}({shown})"


def alternating(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Messages that any template takes: one system message first, neighbours of a role joined."""
    merged: list[dict[str, str]] = []
    for message in messages:
        role, said = message["role"], message["content"]
        if role == "system" and any(m["role"] != "system" for m in merged):
            role = "user"
        if not said:
            continue
        if merged and merged[-1]["role"] == role:
            said = merged.pop()["content"] + "\n\n" + said
        merged.append({"role": role, "content": said})
    return merged


def answer_tokens(answer: str) -> int:
    """Tokens of an answer, estimated from its characters."""
    return max(1, round(len(answer) / CHARS_PER_TOKEN))


def turns_of(messages: list[dict[str, str]], think_s: list[float] | None = None) -> list[Turn]:
    """Each answer with the messages before it; token counts are estimates.

    ``think_s``: time before each turn. An answer without a question before it stays out, as does
    what follows the last answer.
    """
    turns: list[Turn] = []
    new: list[dict[str, str]] = []
    tokens = 0
    for message in alternating(messages):
        if message["role"] != "assistant":
            new.append(message)
            tokens += estimate_tokens(message["content"])
        elif any(m["role"] == "user" for m in new) or turns:
            answer, k = message["content"], len(turns)
            wait = think_s[k] if think_s and k < len(think_s) else 0.0
            turns.append(Turn(tuple(new), answer, answer_tokens(answer), "unknown", tokens, wait))
            tokens += estimate_tokens(answer)
            new = []
    return turns


def read_chat(rows: Rows) -> list[Session]:
    """One session per record."""
    sessions, alone, file = [], len(rows.records) == 1, rows.label or rows.stem
    for number, (_, found) in enumerate(rows.each(_conversation), 1):
        task, turns = found
        if turns:
            id = file if alone else f"{file}-{number:05d}"
            sessions.append(Session(id, task, tuple(turns)))
        else:
            rows.left_out["conversations without a question and its answer"] += 1
    return sessions


def _conversation(row: Any) -> tuple[str, list[Turn]]:
    row = record(row)
    key = conversation_key(row)
    if key is None:
        raise Bad(f"it has none of the lists {', '.join(LISTS)}")
    messages = []
    for i, message in enumerate(row[key]):
        try:
            messages.append(plain(message))
        except Bad as error:
            raise Bad(f"message {i} of {key!r}: {error}") from None
    named = [k for k in ("task_id", "id", "environment") if isinstance(row.get(k), int | str)]
    task = name(row, named[0]) if named else key
    return task, turns_of(messages, _tool_times(row.get("trajectory")))


def _tool_times(steps: Any) -> list[float] | None:
    """SWE-agent's ``execution_time`` of each step, which is the time before the next turn."""
    if not isinstance(steps, list):
        return None
    return [0.0, *(seconds(s, "execution_time") if isinstance(s, dict) else 0.0 for s in steps)]

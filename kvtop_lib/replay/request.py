"""One streamed request: its body, prepared before the send time, and its bytes, stamped as read."""

from __future__ import annotations

import json

from kvtop_lib.replay.client import Client
from kvtop_lib.replay.connection import clock
from kvtop_lib.replay.dialect import SGLANG, Dialect
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.reply import Raw

__all__ = ["Client", "body", "clock", "send", "session", "transcript"]


def body(
    model: str,
    messages: list[dict],
    plan: Plan,
    recorded_tokens: int | None,
    dialect: Dialect = SGLANG,
) -> bytes:
    """JSON body of a completion at temperature 0.

    With ``output: recorded`` the length is the recorded one and the end of sequence is ignored;
    with ``natural`` the model stops by itself, at the latest after ``max_output_tokens``. On
    the route without chat the messages are written out by `transcript`.
    """
    asked = {"messages": messages} if dialect.api == "chat" else {"prompt": transcript(messages)}
    fields: dict = {
        "model": model,
        **asked,
        "temperature": 0.0,
        "max_tokens": plan.max_output_tokens,
        "stream": True,
        **dialect.fields(),
    }
    if plan.output == "recorded":
        fields |= {"max_tokens": recorded_tokens or plan.max_output_tokens, "ignore_eos": True}
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def transcript(messages: list[dict]) -> str:
    """Messages as one prompt, for servers without a chat route.

    The prompt of a turn, followed by its recorded answer, is the start of the next turn's
    prompt, so a prefix cache works as with a chat template.
    """
    said = []
    for m in messages:
        text = m.get("content") or ""
        text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        if calls := m.get("tool_calls"):
            text += json.dumps(calls, ensure_ascii=False)
        said.append(f"{m['role']}:{text}\n")
    return "".join(said) + "assistant:"


def session(timeout_s: float, connections: int = 0) -> Client:
    """A client that reuses its connections and limits silence, not length."""
    return Client(timeout_s, connections)


async def send(client: Client, url: str, data: bytes, raw: Raw) -> None:
    """Send a body and read the answer into ``raw`` until it ends; failures are noted, not raised.

    Only a cancellation is raised, after it was noted: what had arrived by then is kept.
    """
    await client.send(url, data, raw)

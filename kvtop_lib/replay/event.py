"""One event of an OpenAI-compatible stream, decoded: SGLang's, vLLM's or llama.cpp's.

Only what a measurement needs is decoded. Both routes are known: deltas of a chat completion and
the ``text`` of a plain completion.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

# No container of these structs can be part of a cycle, so the collector need not look at them.


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds; servers name reasoning in two ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice; requests ask for a single one."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Tokens as the server counts them, cumulative when it sends them with every event."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(msgspec.Struct, gc=False):
    """llama.cpp's own counts: evaluated (not cached) prompt tokens, cached and predicted ones."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class Event(msgspec.Struct, gc=False):
    """One event; ``sglext`` holds SGLang's counters of drafting."""

    id: Any = None
    object: Any = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    sglext: Any = None
    error: Any = None
    message: Any = None

    @property
    def spec(self) -> dict | None:
        """SGLang's counters of drafting (``return_spec_tokens_details``)."""
        found = self.sglext.get("spec_tokens_details") if isinstance(self.sglext, dict) else None
        return found if isinstance(found, dict) else None

    @property
    def counts(self) -> Usage | None:
        """Usage; where there is none, the same from llama.cpp's timings."""
        if self.usage is not None or self.timings is None:
            return self.usage
        t = self.timings
        prompt = None if t.prompt_n is None else t.prompt_n + (t.cache_n or 0)
        return Usage(t.predicted_n, prompt, PromptDetails(t.cache_n))


_decode = msgspec.json.Decoder(Event).decode


class BadEvent(Exception):
    """The payload is no event of such a stream."""


def decode(data: bytes) -> Event:
    """An event from its payload.

    Raises
    ------
    BadEvent
        When it is not JSON, not an object, or has another shape.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _patiently(data)


def _patiently(data: bytes) -> Event:
    """For what the strict decoder refuses but other clients read: lone surrogates, 3.0 for 3."""
    said = repr(data[:200].decode("utf-8", "replace"))
    try:
        body = json.loads(data)
    except ValueError as e:
        raise BadEvent(f"not JSON: {said}") from e
    if not isinstance(body, dict):
        raise BadEvent(f"not an object: {said}")
    try:
        return msgspec.convert(body, Event, strict=False)
    except (msgspec.ValidationError, UnicodeError) as e:
        raise BadEvent(f"not an event of a completion ({e}): {said}") from e


def error_text(event: Event) -> str | None:
    """The error that an event reports, if it does."""
    if event.error:
        error = event.error
        return str((error.get("message") or error) if isinstance(error, dict) else error)
    if event.object == "error":
        return str(event.message or "error without a text")
    return None

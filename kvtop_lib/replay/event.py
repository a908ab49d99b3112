"""One event of an OpenAI-compatible stream, decoded: SGLang's, vLLM's or llama.cpp's.

Only what a measurement needs is decoded. Both routes are known: deltas of a chat completion and
the ``text`` of a plain completion.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**30 - 1)]
"""Tokens or steps of one request; more, or less than none, no server can mean."""

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

    cached_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """Tokens as the server counts them, cumulative when it sends them with every event."""

    completion_tokens: Count | None = None
    prompt_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None


class Timings(msgspec.Struct, gc=False):
    """llama.cpp's own counts: evaluated (not cached) prompt tokens, cached and predicted ones."""

    prompt_n: Count | None = None
    cache_n: Count | None = None
    predicted_n: Count | None = None


class Drafts(msgspec.Struct, gc=False):
    """SGLang's counters of drafting (``return_spec_tokens_details``)."""

    spec_verify_ct: Count | None = None
    spec_num_proposed_drafts: Count | None = None
    spec_correct_drafts_histogram: list[Count] | None = None


class Extension(msgspec.Struct, gc=False):
    """What SGLang adds to an event."""

    spec_tokens_details: Drafts | None = None


class Event(msgspec.Struct, gc=False):
    """One event."""

    id: Any = None
    object: Any = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    sglext: Extension | None = None
    error: Any = None
    message: Any = None

    @property
    def counts(self) -> Usage | None:
        """Usage; where there is none, the same from llama.cpp's timings."""
        if self.usage is not None or self.timings is None:
            return self.usage
        t = self.timings
        prompt = None if t.prompt_n is None else t.prompt_n + (t.cache_n or 0)
        return Usage(t.predicted_n, prompt, PromptDetails(t.cache_n))


_decode = msgspec.json.Decoder(Event).decode


TEXT_LIMIT = 2000


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
    except RecursionError:
        raise BadEvent(f"nested too deep: {data[:60].decode('utf-8', 'replace')!r}") from None


def _patiently(data: bytes) -> Event:
    """For what the strict decoder refuses but other clients read: lone surrogates, 3.0 for 3."""
    said = repr(data[:200].decode("utf-8", "replace"))
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as e:
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
        return storable((error.get("message") or error) if isinstance(error, dict) else error)
    if event.object == "error":
        return storable(event.message or "error without a text")
    return None


def storable(said: object) -> str:
    """What a server said as one line that a file can hold: whole characters, not too many."""
    try:
        text = str(said)
    except RecursionError:
        text = "nested too deep"
    return " ".join(text[:TEXT_LIMIT].encode("utf-8", "replace").decode().split())

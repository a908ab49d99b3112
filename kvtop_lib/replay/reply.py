"""What the server said in one streamed chat completion: tokens, text, counters, and its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtop_lib.replay.sse import events, rest
from kvtop_lib.terms import RequestStatus


@dataclass
class Raw:
    """Bytes of one response with the times at which they were read; filled while it runs."""

    sent_s: float | None = None
    stamps: list[float] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)
    end_s: float | None = None
    failure: tuple[RequestStatus, str] | None = None  # what the transport saw, if not a clean end


@dataclass
class Reply:
    """A parsed response.

    ``chunks`` holds (time received, cumulative completion tokens as the server counted them),
    one row per event that raised the count. ``uncounted`` is the number of events that carried
    text but no count: tokens are never guessed from chunks or text.
    """

    status: RequestStatus = "ok"
    error: str | None = None
    response_id: str | None = None
    chunks: list[tuple[float, int]] = field(default_factory=list)
    uncounted: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    accepted_hist: list[int] | None = None
    proposed_drafts: int | None = None
    done: bool = False

    @property
    def output_tokens(self) -> int:
        """Completion tokens as the server counted them."""
        return self.chunks[-1][1] if self.chunks else 0

    @property
    def text(self) -> str:
        """Output text, reasoning included."""
        return "".join(self.texts)


def parse(raw: Raw) -> Reply:
    """Read a response after its end and give it exactly one status.

    An error event counts as ``stream_error`` even after good tokens; a complete stream (finish
    reason and end mark) is ``ok`` whatever the transport did afterwards; then comes what the
    transport saw; a stream that just stopped is ``truncated``.
    """
    reply = Reply()
    if raw.failure and raw.failure[0] == "http_error":
        return _ended(reply, *raw.failure)
    for event in events(raw.stamps, raw.buffers):
        if event.data == b"[DONE]":
            reply.done = True
        elif error := _take(reply, event.recv_s, event.data):
            return _ended(reply, "stream_error", error)
    if reply.finish_reason == "abort":
        return _ended(reply, "stream_error", "the server aborted the request")
    if reply.done and reply.finish_reason:
        return reply
    if raw.failure:
        return _ended(reply, *raw.failure)
    missing = "final chunk" if reply.finish_reason is None else "end mark [DONE]"
    left = rest(raw.buffers)[:200].decode("utf-8", "replace")
    tail = f"; last bytes: {left!r}" if left else ""
    return _ended(reply, "truncated", f"the stream ended without its {missing}{tail}")


def _ended(reply: Reply, status: RequestStatus, error: str) -> Reply:
    reply.status, reply.error = status, error
    return reply


def _take(reply: Reply, recv_s: float, data: bytes) -> str | None:
    """Add one event to the reply; the error it reports, if any."""
    try:
        body = json.loads(data)
    except ValueError:
        return f"not JSON: {data[:200].decode('utf-8', 'replace')!r}"
    if not isinstance(body, dict):
        return f"not an object: {data[:200].decode('utf-8', 'replace')!r}"
    if body.get("error") or body.get("object") == "error":
        return _error_text(body)
    reply.response_id = reply.response_id or body.get("id")
    texts = [t for choice in body.get("choices") or () for t in _texts(reply, choice)]
    reply.texts += texts
    before = reply.output_tokens
    _count(reply, recv_s, body.get("usage"), bool(texts))
    _counters(reply, (body.get("sglext") or {}).get("spec_tokens_details"))
    if texts or reply.output_tokens > before:
        reply.first_token_s = recv_s if reply.first_token_s is None else reply.first_token_s
        reply.last_token_s = recv_s
    return None


def _texts(reply: Reply, choice: dict) -> Sequence[str]:
    reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    delta = choice.get("delta") or {}
    return [t for t in (delta.get("reasoning_content"), delta.get("content")) if t]


def _count(reply: Reply, recv_s: float, usage: dict | None, has_text: bool) -> None:
    if not usage:
        reply.uncounted += has_text
        return
    total = usage.get("completion_tokens") or 0
    if total > reply.output_tokens:
        reply.chunks.append((recv_s, total))
    reply.prompt_tokens = usage.get("prompt_tokens", reply.prompt_tokens)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    reply.cached_tokens = reply.cached_tokens if cached is None else cached


def _counters(reply: Reply, spec: dict | None) -> None:
    """SGLang's per-request counters (``return_spec_tokens_details``); absent without drafting."""
    if not spec or not spec.get("spec_verify_ct"):
        return
    reply.verify_steps = spec["spec_verify_ct"]
    reply.accepted_hist = list(spec.get("spec_correct_drafts_histogram") or ()) or None
    reply.proposed_drafts = spec.get("spec_num_proposed_drafts")


def _error_text(body: dict) -> str:
    error = body.get("error") or body
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)

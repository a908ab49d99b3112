"""A response read while it arrives: arrivals with the server's token counts, text hash, errors."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

from kvtop_lib.replay.event import BadEvent, Event, Usage, decode, error_text, storable
from kvtop_lib.replay.sse import Lines
from kvtop_lib.terms import RequestStatus

LINE_LIMIT = 8 << 20
"""Bytes of a line, which no event of a completion has."""

NO_COUNT = -1
"""In `Reply.totals`: an arrival with output whose token count the server did not send."""


@dataclass(slots=True)
class Reply:
    """A parsed response.

    ``times`` and ``totals`` have one row per event that raised the server's cumulative count of
    completion tokens, or that carried output without a count (`NO_COUNT`): tokens are never
    guessed from events or text. ``uncounted`` is the number of the latter. ``failure`` says
    more finely than the status what went wrong.
    """

    status: RequestStatus = "ok"
    error: str | None = None
    failure: str | None = None
    response_id: str | None = None
    times: array = field(default_factory=lambda: array("d"))
    totals: array = field(default_factory=lambda: array("i"))
    uncounted: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None  # of either kind, reasoning or answer
    first_answer_s: float | None = None  # of the answer
    last_token_s: float | None = None
    text_sha256: str | None = None  # of the output text, reasoning included; None without text
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    accepted_hist: list[int] | None = None
    proposed_drafts: int | None = None
    done: bool = False

    @property
    def chunks(self) -> list[tuple[float, int | None]]:
        """(time received, cumulative tokens or None) of every arrival."""
        known = (None if n == NO_COUNT else n for n in self.totals)
        return list(zip(self.times, known, strict=True))


class Reader:
    """Reads a response while it arrives, in pieces of any size."""

    __slots__ = ("_lines", "_sha", "events", "head", "reply", "stopped")

    def __init__(self) -> None:
        self.reply, self._lines, self._sha = Reply(), Lines(), None
        self.events, self.stopped, self.head = 0, False, b""

    @property
    def rest(self) -> bytes:
        """The unfinished last line."""
        return self._lines.rest

    def feed(self, stamps: array | list[float], buffers: list[bytes]) -> None:
        """Read buffers, each with its time; after an error nothing more is read."""
        texts: list[str] = []
        lines, take = self._lines.feed, self._take
        for recv_s, data in zip(stamps, buffers, strict=True):
            if not self.events and len(self.head) < 300:
                self.head += data[:300]
            for payload in lines(data):
                if not self.stopped:
                    self.events += 1
                    take(recv_s, payload, texts)
            if len(self._lines.rest) > LINE_LIMIT:
                self._lines.rest = b""
                if not self.stopped:
                    self._stop(f"a line of more than {LINE_LIMIT} bytes", "garbage")
        if texts:
            self._sha = self._sha or hashlib.sha256()
            self._sha.update("".join(texts).encode("utf-8", "surrogatepass"))

    def finish(self) -> Reply:
        """The reply, with the hash of its text."""
        if self._sha:
            self.reply.text_sha256 = self._sha.hexdigest()
        return self.reply

    def _take(self, recv_s: float, payload: bytes, texts: list[str]) -> None:
        reply = self.reply
        if payload == b"[DONE]":
            reply.done = True
            return None
        try:
            event = decode(payload)
        except BadEvent as e:
            return self._stop(str(e), "garbage")
        if self._plain(recv_s, event, texts):
            return None
        if (event.error or event.object == "error") and (error := error_text(event)):
            return self._stop(error, "error_event")
        if reply.response_id is None and event.id is not None:
            reply.response_id = storable(event.id)
        output = answer = False
        for choice in event.choices or ():
            if choice.finish_reason:
                reply.finish_reason = storable(choice.finish_reason)
            if delta := choice.delta:
                if text := (delta.reasoning_content or delta.reasoning):
                    texts.append(text)
                    output = True
                if delta.content:
                    texts.append(delta.content)
                    output = answer = True
                if delta.tool_calls:
                    output = answer = True
            elif choice.text:
                texts.append(choice.text)
                output = answer = True
        self._arrival(recv_s, event.counts, output, answer)
        if event.sglext is not None:
            self._drafting(event)
        return None

    def _plain(self, recv_s: float, event: Event, texts: list[str]) -> bool:
        """Take what nearly all events are: more text and a count; False for anything else."""
        usage, choices, reply = event.usage, event.choices, self.reply
        if usage is None or not choices or event.error or event.sglext or len(choices) > 1:
            return False
        choice, total = choices[0], usage.completion_tokens
        delta = choice.delta
        if delta is None or choice.finish_reason or reply.first_answer_s is None or not total:
            return False
        text = delta.content
        if not text or total <= reply.output_tokens or delta.reasoning_content or delta.reasoning:
            return False
        texts.append(text)
        reply.output_tokens, reply.last_token_s = total, recv_s
        reply.totals.append(total)
        reply.times.append(recv_s)
        return True

    def _stop(self, error: str, failure: str) -> None:
        self.stopped = True
        self.reply.status, self.reply.error, self.reply.failure = "stream_error", error, failure

    def _arrival(self, recv_s: float, counts: Usage | None, output: bool, answer: bool) -> None:
        reply, total = self.reply, 0
        if counts is not None:
            total = counts.completion_tokens or 0
            if counts.prompt_tokens is not None:
                reply.prompt_tokens = counts.prompt_tokens
            details = counts.prompt_tokens_details
            if details is not None and details.cached_tokens is not None:
                reply.cached_tokens = details.cached_tokens
        more = total > reply.output_tokens
        if more:
            reply.output_tokens = total
        if output and not total:
            reply.uncounted += 1
            reply.totals.append(NO_COUNT)
            reply.times.append(recv_s)
        elif more and (output or not reply.uncounted):
            reply.totals.append(total)
            reply.times.append(recv_s)
        elif not output:
            return  # a total behind uncounted events tells how many tokens came, not when
        if reply.first_token_s is None:
            reply.first_token_s = recv_s
        if answer and reply.first_answer_s is None:
            reply.first_answer_s = recv_s
        reply.last_token_s = recv_s

    def _drafting(self, event: Event) -> None:
        """SGLang's per-request counters; absent without drafting."""
        spec = event.sglext.spec_tokens_details
        if spec and spec.spec_verify_ct:
            reply = self.reply
            reply.verify_steps = spec.spec_verify_ct
            reply.accepted_hist = spec.spec_correct_drafts_histogram or None
            reply.proposed_drafts = spec.spec_num_proposed_drafts

"""The bytes of a null answer: SGLang's stream with the time of sending in every chunk.

A chunk holds one token and the field ``sent_ns``, CLOCK_MONOTONIC when it was handed to the
kernel, so that a client on the same host knows how late it noticed it. The first text is the
number of the request, so that records which keep only texts can be matched with the log.
"""

from __future__ import annotations

import json

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
PROMPT_TOKENS = 32
SPREAD = 0.6180339887498949
"""Golden ratio: phases of any number of streams in a row are spread evenly over the period."""


def phase(number: int, period_s: float) -> float:
    """Seconds from the arrival of a request to its first chunk, within one period."""
    return number * SPREAD % 1.0 * period_s


def framed(event: bytes) -> bytes:
    """An event as one chunk of the HTTP framing."""
    return b"%x\r\n%b\r\n" % (len(event), event)


class Stream:
    """The chunks of one answer.

    Parameters
    ----------
    number
        Number of the request since the last reset.
    chunks
        Chunks with a token.
    chat
        ``/v1/chat/completions`` rather than ``/v1/completions``.
    usage
        The final usage chunk was asked for.
    counted
        Cumulative usage in every chunk was asked for (``continuous_usage_stats``).
    """

    __slots__ = ("_chat", "_first", "_middle", "_start", "chunks", "counted", "number", "usage")

    def __init__(self, number: int, chunks: int, chat: bool, usage: bool, counted: bool) -> None:
        self.number, self.chunks, self._chat = number, chunks, chat
        self.usage, self.counted = usage, counted
        rid, kind = f"null-{number}", "chat.completion.chunk" if chat else "text_completion"
        fields = f'{{"id":"{rid}","object":"{kind}","created":1700000000,'
        fields += '"model":"null-server","choices":'
        self._start = f"data: {fields}".encode()
        self._first = self._choice(f"#{number} ")
        self._middle = self._choice("tok ")

    def _choice(self, text: str | None, finish: str | None = None) -> bytes:
        said = {"role": None, "content": text, "reasoning_content": None, "tool_calls": None}
        choice = {"index": 0} | ({"delta": said} if self._chat else {"text": text or ""})
        choice |= {"logprobs": None, "finish_reason": finish, "matched_stop": None}
        return json.dumps([choice], separators=(",", ":")).encode()

    def _usage(self, total: int) -> bytes:
        return (
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":0}}'
        ) % (PROMPT_TOKENS, PROMPT_TOKENS + total, total)

    def chunk(self, index: int, sent_ns: int) -> bytes:
        """Chunk ``index`` (from 0), framed; the last one brings the end of the answer along."""
        usage = self._usage(index + 1) if self.counted else b"null"
        said = self._middle if index else self._first
        event = b'%b%b,"usage":%b,"sent_ns":%d}\n\n' % (self._start, said, usage, sent_ns)
        data = b"%x\r\n%b\r\n" % (len(event), event)
        if index + 1 < self.chunks:
            return data
        finish = self._choice(None, "length")
        data += framed(b'%b%b,"usage":null}\n\n' % (self._start, finish))
        if self.usage:
            total = self._usage(self.chunks)
            data += framed(b'%b[],"usage":%b}\n\n' % (self._start, total))
        return data + END


def whole(number: int, chunks: int, chat: bool) -> bytes:
    """Body of an answer that is not streamed."""
    text = f"#{number} " + "tok " * (chunks - 1)
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return json.dumps(
        {
            "id": f"null-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": 1700000000,
            "model": "null-server",
            "choices": [{"index": 0, **said, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": chunks,
                "total_tokens": PROMPT_TOKENS + chunks,
            },
        }
    ).encode()

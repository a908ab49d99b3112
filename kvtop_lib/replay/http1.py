"""The part of HTTP/1.1 that a streaming client needs: heads of answers, and body framing.

Framing is decoded lazily: an answer's bytes are kept as they came, and the decoder runs over
them when somebody wants to read them. Written from RFC 9112.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_LIMIT = 65536
LINE_LIMIT = 4096
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?")
_HEX = re.compile(rb"[0-9a-fA-F]{1,15}")


class BadAnswer(Exception):
    """The bytes are not what HTTP/1.1 allows here; the text says in which way."""


class Framing:
    """Takes a body out of its framing, piece by piece, wherever the network cut it.

    Parameters
    ----------
    length
        Bytes of the body; None for chunked transfer coding, -1 for a body that ends with the
        connection.
    """

    __slots__ = ("_carry", "_left", "_trailer", "broken", "ended", "extra", "length")

    def __init__(self, length: int | None = None) -> None:
        self.length, self.ended, self.extra = length, length == 0, b""
        self._left, self._carry, self._trailer = length or 0, b"", False
        self.broken: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Body bytes of the next piece; ``ended`` and ``extra`` (bytes behind the end) are set.

        Raises
        ------
        BadAnswer
            When chunked coding is broken; from then on always.
        """
        if self.broken:
            raise BadAnswer(self.broken)
        if self.ended:
            self.extra += data
            return b""
        if self.length is not None:
            return data if self.length < 0 else self._counted(data)
        if not self._left and not self._carry and not self._trailer:
            # what servers do: one event, one chunk, one read
            at = data.find(b"\r\n", 0, 16)
            try:
                size = int(data[:at], 16) if at > 0 else 0
                if size > 0 and size == len(data) - at - 4 and data[-2:] == b"\r\n":
                    return data[at + 2 : -2]
            except ValueError:
                pass
        try:
            return self._chunked(data)
        except BadAnswer as e:
            self.broken = str(e)
            raise

    def _counted(self, data: bytes) -> bytes:
        body, self.extra = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.ended = not self._left
        return body

    def _chunked(self, data: bytes) -> bytes:
        data, at, body = self._carry + data, 0, []
        self._carry = b""
        while at < len(data) and not self.ended:
            if self._left > 2:  # inside a chunk; 2 is its line end
                part = data[at : at + self._left - 2]
                body.append(part)
                at, self._left = at + len(part), self._left - len(part)
            elif self._left:
                if data[at] != b"\n\r"[self._left - 1]:
                    raise BadAnswer("a chunk is longer than it says")
                at, self._left = at + 1, self._left - 1
            else:
                stop = data.find(b"\r\n", at)
                if stop < 0:
                    self._carry = data[at:]
                    if len(self._carry) > LINE_LIMIT:
                        raise BadAnswer("a chunk has no size")
                    break
                self._line(data[at:stop])
                at = stop + 2
        self.extra = data[at:] if self.ended else b""
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._trailer:
            self.ended = not line
            return
        size = line.partition(b";")[0].strip()
        if not _HEX.fullmatch(size):
            raise BadAnswer(f"a chunk's size is {line[:40]!r}")
        self._left = int(size, 16)
        self._trailer = not self._left
        self._left += 2 * bool(self._left)


@dataclass(frozen=True)
class Head:
    """Status and framing of an answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    keep_alive: bool

    def framing(self) -> Framing:
        """Decoder of the body.

        Raises
        ------
        BadAnswer
            When the body is compressed or its length is no number, or none of bytes that can come.
        """
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            raise BadAnswer(f"the answer is compressed ({coding}), which was not asked for")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return Framing(None)
        if self.status in (204, 304):
            return Framing(0)
        length = self.headers.get("content-length")
        if length is None:
            return Framing(-1)
        if not (length.isascii() and length.isdecimal() and len(length) < 16):
            raise BadAnswer(f"its Content-Length is {length[:40]!r}")
        return Framing(int(length))


def take_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head at the start of ``data`` and what follows it; None while it is incomplete.

    Interim answers (1xx) are passed over.

    Raises
    ------
    BadAnswer
        When it is no HTTP/1.x answer or its head is too long.
    """
    while True:
        block, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            if len(data) > HEAD_LIMIT or not b"HTTP/1."[: len(data)] == data[:7]:
                raise BadAnswer(f"not an HTTP/1.1 answer: {data[:60]!r}")
            return None
        first, *lines = block.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if not match:
            raise BadAnswer(f"not an HTTP/1.1 answer: {first[:60]!r}")
        if match[2].startswith(b"1"):
            data = rest
            continue
        pairs = (line.decode("latin-1").partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        said = headers.get("connection", "").lower()
        keep = "close" not in said and (match[1] == b"1" or "keep-alive" in said)
        return Head(int(match[2]), headers, keep), rest

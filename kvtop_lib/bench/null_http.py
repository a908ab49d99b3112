"""As much HTTP/1.1 as the null server needs: requests with a length, answers kept alive."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from kvtop_lib.bench.null_stream import Stream

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found"}


@dataclass(frozen=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def answer(status: int, body: bytes) -> bytes:
    """A whole answer in JSON."""
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection:
    """A socket with what has been read of the next request and what could not be sent yet."""

    __slots__ = ("_inbox", "closed", "sock", "stamps", "stream", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._inbox, self.unsent = sock, b"", bytearray()
        self.closed, self.stream, self.stamps = False, None, None
        self.stream: Stream | None

    def read(self) -> Request | None:
        """What has arrived, as a request when it is whole."""
        while True:
            try:
                data = self.sock.recv(262144)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return None
            self._inbox += data
        return self.next()

    def next(self) -> Request | None:
        """The next whole request of those that have arrived; none while a stream runs."""
        head, blank, rest = self._inbox.partition(b"\r\n\r\n")
        if not blank or self.stream or self.closed:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = headers.get("content-length", "0")
        parts = first.split(" ")
        if len(parts) != 3 or not length.isdecimal() or "transfer-encoding" in headers:
            self.closed = True  # not a client that the benchmark drives
            return None
        if len(rest) < int(length):
            if headers.pop("expect", None):
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        self._inbox = rest[int(length) :]
        return Request(parts[0], parts[1].partition("?")[0], headers, rest[: int(length)])

    def write(self, data: bytes) -> None:
        """Send, or keep what the socket does not take."""
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.closed = True
            return
        if sent < len(data):
            self.unsent += data[sent:]

    def flush(self) -> bool:
        """Send what was kept; whether the socket took some of it."""
        try:
            sent = self.sock.send(self.unsent)
        except BlockingIOError:
            return False
        except OSError:
            self.closed = True
            return False
        del self.unsent[:sent]
        return sent > 0

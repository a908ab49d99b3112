"""A server without a model: every stream gets chunks at a fixed rate, stamped as they are sent.

``python -m kvtop_lib.bench.null_server`` prints one JSON line with its port and serves until it
is ended. One thread, epoll and a heap of due times, no garbage collection: what it costs is told
by ``/null/stats`` and must stay well below one core. The number of chunks is the request's
``max_tokens`` (or ``max_completion_tokens``). Chunk ``k`` of a stream is due ``k`` periods after
its first, whatever happened before, so the rate is exact; a chunk that is sent late says so in
``lateness``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import select
import socket
import time
from array import array

from kvtop_lib.bench.null_http import Connection, Request, answer
from kvtop_lib.bench.null_stream import HEAD, Stream, phase, whole
from kvtop_lib.replay.health import no_collection

DEFAULT_CHUNKS = 16
clock_ns = time.monotonic_ns


class NullServer:
    """State of the server; `serve` runs it.

    Parameters
    ----------
    period_s
        Seconds between two chunks of a stream.
    together
        All streams send at the same moments, as one engine iteration does, rather than spread.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, period_s: float = 0.1, together=False
    ):
        self.period_ns, self.together = round(period_s * 1e9), together
        self.listener = socket.create_server((host, port), backlog=4096)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self.listener, select.EPOLLIN)
        self._open: dict[int, Connection] = {}
        self._due: list[tuple[int, int, int, Connection]] = []
        self.stop = False
        self.reset()

    def reset(self) -> None:
        """Forget what was sent; open streams go on under their old numbers."""
        self.started = self.active = self.completed = self.broken = self.sent_chunks = 0
        self.stamps: list[array] = []
        self.request_ids: list[str | None] = []
        self.late = array("q")

    def serve(self) -> None:
        """Serve until ``stop``."""
        with no_collection():
            self._serve()

    def _serve(self) -> None:
        while not self.stop:
            wait_s = max(0.0, (self._due[0][0] - clock_ns()) / 1e9) if self._due else 1.0
            for fd, _ in self._poll.poll(min(wait_s, 1.0)):
                if fd == self.listener.fileno():
                    self._accept()
                elif connection := self._open.get(fd):
                    self._ready(connection)
            self._send_due()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            connection = Connection(sock)
            self._open[sock.fileno()] = connection
            self._poll.register(sock, select.EPOLLIN)

    def _ready(self, connection: Connection) -> None:
        if connection.unsent and connection.flush() and not connection.unsent:
            self._poll.modify(connection.sock, select.EPOLLIN)
        request = connection.read()
        while request:
            self._answer(connection, request)
            request = connection.next()
        if connection.closed:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.stream:
            self.broken, self.active = self.broken + 1, self.active - 1
            connection.stream = None
        if self._open.pop(connection.sock.fileno(), None):
            self._poll.unregister(connection.sock)
        connection.sock.close()

    def _answer(self, connection: Connection, request: Request) -> None:
        if request.path.endswith("/completions") and request.method == "POST":
            return self._complete(connection, request)
        found = {
            "/null/stats": self.stats,
            "/null/log": self.log,
            "/null/reset": self.reset,
            "/v1/models": lambda: {
                "object": "list",
                "data": [{"id": "null-server", "object": "model"}],
            },
            "/health": dict,
            "/": dict,
        }.get(request.path)
        body = json.dumps(found() or {} if found else {"error": {"message": "unknown path"}})
        self._write(connection, answer(200 if found else 404, body.encode()))

    def _complete(self, connection: Connection, request: Request) -> None:
        try:
            asked = json.loads(request.body)
            wanted = asked.get("max_tokens") or asked.get("max_completion_tokens")
            chunks = int(wanted or DEFAULT_CHUNKS)
            options = asked.get("stream_options") or {}
            usage, counted = options.get("include_usage"), options.get("continuous_usage_stats")
            streamed = asked.get("stream")
        except (ValueError, AttributeError, TypeError):
            body = b'{"error":{"message":"the body is not a completion request"}}'
            return self._write(connection, answer(400, body))
        chat = "/chat/" in request.path
        if not streamed:  # a probe of a client; it is no part of the measurement
            return self._write(connection, answer(200, whole(0, chunks, chat)))
        number = self.started
        connection.stream = Stream(number, chunks, chat, bool(usage), bool(counted))
        connection.stamps = array("q")
        self.started, self.active = number + 1, self.active + 1
        self.stamps.append(connection.stamps)
        self.request_ids.append(request.headers.get("x-request-id"))
        self._write(connection, HEAD)
        now = clock_ns()
        if self.together:
            due = (now // self.period_ns + 1) * self.period_ns
        else:
            due = now + round(phase(number, self.period_ns))
        heapq.heappush(self._due, (due, id(connection), 0, connection))

    def _send_due(self) -> None:
        due = self._due
        while due and due[0][0] <= clock_ns():
            at, key, index, connection = due[0]
            stream = connection.stream
            if stream is None:  # the client has gone
                heapq.heappop(due)
                continue
            last = index + 1 == stream.chunks
            if last:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (at + self.period_ns, key, index + 1, connection))
            now = clock_ns()
            connection.stamps.append(now)
            self.late.append(now - at)
            self.sent_chunks += 1
            self._write(connection, stream.chunk(index, now))
            if last and connection.stream:
                connection.stream = None
                self.completed, self.active = self.completed + 1, self.active - 1

    def _write(self, connection: Connection, data: bytes) -> None:
        connection.write(data)
        if connection.closed:
            self._close(connection)
        elif connection.unsent:
            self._poll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def stats(self) -> dict:
        """Counts since the reset, CPU seconds of the process, and lateness in seconds."""
        late = sorted(self.late)
        at = {f"late_p{q}_s": late[min(len(late) - 1, len(late) * q // 100)] / 1e9 if late else None
              for q in (50, 99)}  # fmt: skip
        names = ("started", "active", "completed", "broken", "sent_chunks")
        cpu = {"cpu_s": time.process_time(), "clock_s": time.monotonic()}
        return {k: getattr(self, k) for k in names} | cpu | at

    def log(self) -> list[dict]:
        """Times of sending by request, CLOCK_MONOTONIC in nanoseconds, in order of arrival."""
        return [
            {"number": n, "x_request_id": rid, "sent_ns": list(stamps)}
            for n, (rid, stamps) in enumerate(zip(self.request_ids, self.stamps, strict=True))
        ]


def main(argv: list[str] | None = None) -> None:
    """Serve until ended; the first line on stdout tells the port."""
    parser = argparse.ArgumentParser(prog="kvtop_lib.bench.null_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--period", type=float, default=0.1, help="seconds between chunks")
    parser.add_argument("--together", action="store_true", help="all streams send at once")
    parser.add_argument("--core", type=int, help="the core to stay on")
    args = parser.parse_args(argv)
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = NullServer(port=args.port, period_s=args.period, together=args.together)
    print(json.dumps({"port": server.port, "pid": os.getpid()}), flush=True)
    server.serve()


if __name__ == "__main__":
    main()

"""The floor: sockets that are read and stamped, nothing else; no client of a stream does less.

``python -m kvtop_lib.bench.floor --url URL --streams N --chunks K --out FILE``. Requests and
lines are looked at only after the last stream has ended, outside of what is measured.
"""

from __future__ import annotations

import re
import resource
import select
import socket
import time
from bisect import bisect_right
from itertools import accumulate
from urllib.parse import urlsplit

from kvtop_lib.bench.driver import Seen, payload, run_driver

_STAMP = re.compile(rb'"sent_ns":\d+\}\n\n')
_NUMBER = re.compile(rb'"id":"null-(\d+)"')


def read_streams(url: str, streams: int, chunks: int) -> tuple[list[Seen], dict[str, float]]:
    """Open all streams at once and read them to their ends.

    Returns
    -------
    tuple
        What was seen of every stream, and ``cpu_s`` and ``wall_s`` of sending and reading.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    parts, body = urlsplit(url), payload(chunks)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request, address = head.encode() + body, (parts.hostname, parts.port)
    clock, poll = time.monotonic, select.epoll()
    cpu_s, since_s = time.process_time(), clock()
    open_now: dict[int, tuple[socket.socket, list[float], list[bytes]]] = {}
    for _ in range(streams):
        sock = socket.create_connection(address)
        sock.sendall(request)
        sock.setblocking(False)
        open_now[sock.fileno()] = (sock, [], [])
        poll.register(sock, select.EPOLLIN)
    read = list(open_now.values())
    while open_now:
        for fd, _ in poll.poll():
            sock, stamps, buffers = open_now[fd]
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            stamps.append(clock())
            buffers.append(data)
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(fd)
                sock.close()
                del open_now[fd]
    cost = {"cpu_s": time.process_time() - cpu_s, "wall_s": clock() - since_s}
    return [seen_in(stamps, buffers) for _, stamps, buffers in read], cost


def seen_in(stamps: list[float], buffers: list[bytes]) -> Seen:
    """Times at which the chunks of one stream were complete."""
    whole, ends = b"".join(buffers), list(accumulate(map(len, buffers)))
    times = [stamps[bisect_right(ends, m.end() - 1)] for m in _STAMP.finditer(whole)]
    number = _NUMBER.search(whole)
    done = whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    return Seen(int(number[1]) if number else None, "ok" if done else "truncated", times)


if __name__ == "__main__":
    run_driver("kvtop_lib.bench.floor", __doc__, read_streams)

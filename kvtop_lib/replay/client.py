"""The streaming client: connections that are reused, and bytes that are read when there is time.

A read in the middle of a stream costs a stamp and an append (`connection`). Everything else,
framing, lines, JSON, is done later in slices short enough not to delay a stamp, so that raw
bytes do not pile up either.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass, field

from kvtop_lib.replay.backlog import Backlog
from kvtop_lib.replay.connection import Connection, clock
from kvtop_lib.replay.dialect import SGLANG, Dialect
from kvtop_lib.replay.limits import raise_open_files
from kvtop_lib.replay.origin import Origin, head_of
from kvtop_lib.replay.reply import Raw


@dataclass(eq=False)
class Client:
    """A client for streams; use it as an async context manager.

    Parameters
    ----------
    timeout_s
        Longest silence of a request, and longest time to connect.
    connections
        Streams that will be open at once; the open-file limit is raised for them.
    digest_s
        Seconds between two looks for bytes to read; None: bytes stay until `parse`.

    Proxies of the environment are never used: their time would be measured too.

    Raises
    ------
    KvtopError
        When the system does not allow that many open files.
    """

    timeout_s: float
    connections: int = 0
    digest_s: float | None = 0.25
    dialect: Dialect = SGLANG
    backlog: Backlog = field(default_factory=Backlog, init=False)
    opened: int = field(default=0, init=False)
    resent: int = field(default=0, init=False)
    _idle: dict[Origin, list[Connection]] = field(default_factory=dict, init=False)
    _addresses: dict[Origin, list[tuple]] = field(default_factory=dict, init=False)
    _tls: ssl.SSLContext | None = field(default=None, init=False)
    _task: asyncio.Task | None = field(default=None, init=False)

    async def __aenter__(self) -> Client:
        self.open_files = raise_open_files(self.connections)
        if self.digest_s is not None:
            self._task = asyncio.create_task(self.backlog.watch(self.digest_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    def facts(self) -> dict:
        """Health of the client for the records."""
        return {
            "connections_opened": self.opened,
            "requests_resent": self.resent,
            "raw_peak_bytes": self.backlog.peak_bytes,
            "open_files_limit": self.open_files,
            "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            "dialect": self.dialect.as_dict(),
        }

    async def send(self, url: str, data: bytes, raw: Raw) -> None:
        """As `kvtop_lib.replay.request.send`."""
        origin, head = head_of("POST", url)
        message = b"%b%d\r\n\r\n%b" % (head, len(data), data)
        raw.sent_s = clock()
        self.backlog.active[id(raw)] = raw
        try:
            await self._exchange(origin, message, raw)
        except asyncio.CancelledError:
            raw.failure = ("cancelled", "cancelled by the client", "cancelled")
            raise
        finally:
            del self.backlog.active[id(raw)]
            raw.end_s = clock() if raw.end_s is None else raw.end_s

    async def get(self, url: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises
        ------
        OSError
            When there is no whole answer in time.
        """
        return await self._whole("GET", url, b"", timeout_s)

    async def post(self, url: str, data: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a POST whose answer is no measurement; raises as `get`."""
        return await self._whole("POST", url, data, timeout_s)

    async def _whole(self, method: str, url: str, data: bytes, timeout_s: float):
        origin, head = head_of(method, url)
        raw = Raw(sent_s=clock())
        async with asyncio.timeout(timeout_s):
            await self._exchange(origin, b"%b%d\r\n\r\n%b" % (head, len(data), data), raw)
        if raw.http_status is None or (raw.failure and raw.failure[0] != "http_error"):
            raise OSError(raw.failure[1] if raw.failure else "no answer")
        return raw.http_status, b"".join(raw.buffers)

    async def _exchange(self, origin: Origin, message: bytes, raw: Raw) -> None:
        idle = self._idle.setdefault(origin, [])
        while True:
            connection = None
            while idle and not (connection and connection.usable):
                connection = idle.pop()
            raw.reused = bool(connection and connection.usable)
            if not raw.reused and not (connection := await self._connect(origin, raw)):
                return
            try:
                await connection.exchange(message, raw, self.timeout_s)
            except asyncio.CancelledError:
                connection.abort()
                raise
            if connection.usable:
                idle.append(connection)
            if not (raw.reused and connection.silent_loss):
                return
            self.resent, raw.resent = self.resent + 1, raw.resent + 1
            raw.failure = raw.end_s = None

    async def _connect(self, origin: Origin, raw: Raw) -> Connection | None:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._open(origin)
        except TimeoutError:
            text = f"no connection within {self.timeout_s:g} s"
            raw.failure = ("timeout", text, "connect_timeout")
        except OSError as e:
            kind = "refused" if e.errno == errno.ECONNREFUSED else "no_connection"
            if e.errno == errno.EMFILE:
                kind = "open_files"
            raw.failure = ("http_error", f"no connection to {origin.name}: {e}", kind)
        return None

    async def _open(self, origin: Origin) -> Connection:
        loop, error = asyncio.get_running_loop(), OSError("its name has no address")
        if origin not in self._addresses:
            found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            self._addresses[origin] = list(dict.fromkeys(f[4][:2] for f in found))
        more: dict = {}
        if origin.tls:
            self._tls = self._tls or ssl.create_default_context()
            more = {"ssl": self._tls, "server_hostname": origin.host}
        for host, port in self._addresses[origin]:
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), host, port, **more
                )
                self.opened += 1
                return connection
            except OSError as e:
                error = e
        raise error

"""What the client's processes say to each other: pickled messages over a pair of sockets.

A message is a name and what belongs to it. From the first process to another:

=================  ==============================================================================
setup Setup        what the point is; the first message
play Place         play from there on
put Session        lay a session ready
allow lanes        keep so many lanes (`Share.allow`)
prepare            say ready once the bodies of what was given are made
begin start_s      the point has begun then
last               no arrival comes any more
stop               cancel what is in flight
=================  ==============================================================================

And back:

=================  ==============================================================================
ready              all bodies are made
took               a lane wants a session
moved Place        a lane goes on elsewhere
ended Ended bytes  a request has ended; its record, pickled, to be read after the traffic
pulse n tokens s   requests in flight, tokens read of them, recent lag p99
fault error        what went wrong in the process
over facts         all has ended; lag in the window and health of the client
=================  ==============================================================================

The end of the sockets is the end of the other side: it is the end of a further process too.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import pickle
import socket
from dataclasses import dataclass
from typing import Any

from kvtop_lib.replay.dialect import Dialect
from kvtop_lib.replay.plan import Plan
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import TextMaker

CLOSE_S = 5.0
_SIZE = 8  # bytes of a message's length


@dataclass(frozen=True)
class Setup:
    """One point, as all its processes need to know it."""

    url: str  # of the requests
    model: str
    dialect: Dialect
    plan: Plan
    seed: int
    open: bool
    connections: int  # streams that may be open at once
    text: TextMaker | None  # writes the prompts of sessions without text


class _Pickler(pickle.Pickler):
    """Names the text maker, which both ends know, instead of sending it with every session."""

    def __init__(self, out: io.BytesIO, text: TextMaker | None) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._text = text

    def persistent_id(self, thing: Any) -> str | None:
        return "text" if thing is self._text and thing is not None else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, text: TextMaker | None) -> None:
        super().__init__(io.BytesIO(data))
        self._text = text

    def persistent_load(self, _: str) -> TextMaker | None:
        return self._text


def packed(message: tuple, text: TextMaker | None = None) -> bytes:
    """A message as bytes; ``text`` is named in it, not in it."""
    out = io.BytesIO()
    _Pickler(out, text).dump(message)
    return out.getvalue()


def unpacked(data: bytes, text: TextMaker | None = None) -> tuple:
    """A message of `packed` bytes, with this ``text`` where that was named."""
    return _Unpickler(data, text).load()


class Line:
    """One end; ``text`` is to be the same at both, see `packed`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.text: TextMaker | None = None

    @classmethod
    async def over(cls, end: socket.socket) -> Line:
        """A line over one of two connected sockets."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, *message: Any) -> None:
        """Send, as soon as the other side reads."""
        data = packed(message, self.text)
        self._writer.write(len(data).to_bytes(_SIZE, "big") + data)

    async def receive(self) -> tuple:
        """The next message.

        Raises
        ------
        EOFError, OSError
            When there is none: the other side has ended.
        """
        size = int.from_bytes(await self._reader.readexactly(_SIZE), "big")
        return unpacked(await self._reader.readexactly(size), self.text)

    async def close(self) -> None:
        """Send what is left, if the other side still reads, and end the line."""
        self._writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()


def portable(fault: BaseException) -> BaseException:
    """The fault, or its text where it cannot be sent."""
    try:
        return pickle.loads(pickle.dumps(fault))
    except Exception:  # noqa: BLE001 - whatever its class makes of it
        return KvtopError(f"{type(fault).__name__}: {fault}")

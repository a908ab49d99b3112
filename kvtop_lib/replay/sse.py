"""Server-sent events out of bytes, wherever the network cut them.

Bytes are fed as they were read; a line belongs to the read that brought its line end, so a cut
inside a line or inside a UTF-8 character changes no text and no order.
"""

from __future__ import annotations


class Lines:
    """Payloads of ``data:`` lines (the OpenAI streams never spread an event over several).

    Comments (``: keep-alive``) and other fields (``event:``, ``id:``) are skipped. ``rest`` is
    what follows the last line end: in a cut stream the line that was being sent.
    """

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the data lines that these bytes complete."""
        if not self.rest and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2:
            if data[-1:] == b"\n" and b"\r" not in data:  # what servers do: one event, one read
                return [data[6:-2]]
        # a carriage return alone ends a line too; an empty line says nothing
        *lines, self.rest = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        return [line[5:].removeprefix(b" ") for line in lines if line[:5] == b"data:"]

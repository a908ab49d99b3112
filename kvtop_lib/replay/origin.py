"""Where requests go, and the constant part of their heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from kvtop_lib.terms import KvtopError


@dataclass(frozen=True)
class Origin:
    """A server."""

    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> tuple[Origin, str]:
        """Origin and path of a URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise KvtopError(f"{url!r} is not of the form http://host:port")
        tls = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls), path

    @property
    def name(self) -> str:
        """The Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(64)
def head_of(method: str, url: str) -> tuple[Origin, bytes]:
    """Origin of a URL and a request's head, up to the number of Content-Length.

    Raises
    ------
    KvtopError
        When it is no http or https URL.
    """
    origin, path = Origin.of(url)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {origin.name}\r\nUser-Agent: kvtop\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n"
        "Content-Length: "
    )
    return origin, head.encode("ascii", "replace")

"""Where requests go, and the constant part of their heads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from kvtop_lib.replay.dialect import PATHS
from kvtop_lib.terms import KvtopError

_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"({_LABEL}(\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])(:\d+)?")
_ROUTES = (*PATHS.values(), "/v1")


def server_url(text: str) -> str:
    """``http://host:port`` of what a user typed, as other clients want it or as servers print it.

    A bare host:port is http; a slash at the end and the route (``/v1``, or all of it) are left
    out, a path before it, of a gateway, stays.

    Raises
    ------
    KvtopError
        When it is no such address.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        good = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        good = False
    if not good or not _HOST.fullmatch(parts.netloc) or parts.query or parts.fragment:
        raise KvtopError(f"{text!r} is not of the form http://host:port; name host and port alone")
    path = parts.path.rstrip("/")
    route = next((r for r in _ROUTES if path.endswith(r)), "")
    path = path.removesuffix(route).rstrip("/")
    if not re.fullmatch(r"[\w./~-]*", path, re.ASCII):
        raise KvtopError(f"{text!r} holds a path that no server has; leave it out")
    return f"{parts.scheme}://{parts.netloc}{path}"


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

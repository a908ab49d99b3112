"""Small blocking calls to a server on this machine (the replay has a client of its own)."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

from kvtop_lib.terms import KvtopError

_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


def call(url: str, body: dict | None = None, *, method: str | None = None, timeout_s: float) -> Any:
    """GET `url`, or POST `body` as JSON; returns the parsed JSON, or the text when it is none.

    Raises
    ------
    KvtopError
        When nothing answers, or with an HTTP status of 400 and above.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, headers={"Content-Type": "application/json"}, method=method
    )
    try:
        with _LOCAL.open(request, timeout=timeout_s) as reply:
            text = reply.read().decode()
    except urllib.error.HTTPError as e:
        detail = " ".join(e.read().decode(errors="replace").split())[:300]
        raise KvtopError(f"{url} answered {e.code}: {detail or e.reason}") from e
    except (OSError, urllib.error.URLError) as e:
        raise KvtopError(f"{url} does not answer: {getattr(e, 'reason', e)}") from e
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def free_port(host: str) -> int:
    """A TCP port that is free on `host` now."""
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]

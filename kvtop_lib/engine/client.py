"""Small blocking calls to a server (the traffic of a replay has a client of its own)."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from typing import Any

from kvtop_lib.terms import KvtopError

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def direct(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Open an address, never through a proxy; errors as `urllib.request.urlopen`.

    What answers and is no HTTP server is an OSError too.
    """
    try:
        return _DIRECT.open(request, timeout=timeout_s)
    except http.client.HTTPException as e:
        raise OSError(f"what answers is no HTTP server ({type(e).__name__})") from e


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
        with direct(request, timeout_s) as reply:
            text = reply.read().decode()
    except urllib.error.HTTPError as e:
        raise KvtopError(f"{url} answered {e.code}: {_said(e) or e.reason}") from e
    except (OSError, http.client.HTTPException) as e:
        raise KvtopError(f"{url} does not answer: {getattr(e, 'reason', e)}") from e
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _said(error: urllib.error.HTTPError) -> str:
    """The text of an error answer as one line; what came of it when it was cut."""
    try:
        data = error.read()
    except http.client.IncompleteRead as e:
        data = e.partial
    except OSError:
        data = b""
    return " ".join(data.decode("utf-8", "replace").split())[:300]


def flush(url: str, timeout_s: float = 30.0) -> None:
    """Empty the server's prefix cache and, with n-gram drafts, its memory of past outputs.

    SGLang refuses while a request runs or waits, so the server is asked to wait until it is
    idle. Called before every point, in every arm alike.

    Raises
    ------
    KvtopError
        When the server refuses or does not answer.
    """
    request = urllib.request.Request(f"{url}/flush_cache?timeout={timeout_s:g}", method="POST")
    try:
        with direct(request, timeout_s + 10):
            return
    except urllib.error.HTTPError as e:
        if e.code in (404, 405):
            raise KvtopError(
                f"{url} has no /flush_cache, so it is not SGLang; start it anew before a point and "
                "give --no-flush"
            ) from e
        raise KvtopError(f"the server did not flush its cache (HTTP {e.code}): {_said(e)}") from e
    except OSError as e:
        raise KvtopError(f"no answer from {url}/flush_cache: {e}; is the server up?") from e


def free_port(host: str) -> int:
    """A TCP port that is free on `host` now."""
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]

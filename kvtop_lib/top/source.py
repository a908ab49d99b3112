"""Blocking calls of `kvtop top` to a server: its page, and once what it was started with."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from typing import Any
from urllib.parse import urlsplit

from kvtop_lib.engine.client import direct
from kvtop_lib.replay import pages
from kvtop_lib.replay.origin import server_url

DEFAULT_URL = "http://127.0.0.1:30000"
_LAYER = {"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP", "STANDALONE"}  # drafts with KV of its own
MOST_BYTES = 16 << 20  # a page of metrics has some hundred kilobytes


class NoServer(Exception):
    """Nothing answers, or not with metrics; the text is for a reader."""


def address(url: str) -> str:
    """``http://host:port`` of what a user typed; raises as `server_url`."""
    parts = urlsplit(server_url(url))
    return f"{parts.scheme}://{parts.netloc}"


def get(url: str, timeout_s: float) -> bytes:
    """Body of a GET.

    Raises
    ------
    NoServer
        When nothing answers in time, or with a status of 400 and above (``status`` is set then),
        or when the answer is cut, or does not end in time or within `MOST_BYTES`.
    """
    deadline, body = time.monotonic() + timeout_s, bytearray()
    try:
        with direct(url, timeout_s) as reply:  # its own limit is one of silence
            while piece := reply.read1(1 << 16):
                body += piece
                if len(body) > MOST_BYTES:
                    raise NoServer(f"the answer of {url} is larger than {MOST_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise NoServer(f"the answer of {url} does not end within {timeout_s:g} s")
            if reply.length:  # bytes that were announced and did not come
                raise NoServer(f"the answer of {url} was cut after {len(body)} bytes")
            return bytes(body)
    except urllib.error.HTTPError as e:
        problem = NoServer(f"{url} answers HTTP {e.code}")
        problem.status = e.code
        raise problem from e
    except (OSError, http.client.HTTPException) as e:
        why = getattr(e, "reason", None) or e
        why = getattr(why, "strerror", None) or why
        raise NoServer(f"no server answers at {url.rsplit('/', 1)[0]} ({why})") from e


def metrics(url: str, timeout_s: float = 3.0) -> pages.Page:
    """The server's page of metrics.

    Raises
    ------
    NoServer
        Without a server, a page, or metrics of SGLang or vLLM on it.
    """
    try:
        body = get(f"{url}/metrics", timeout_s)
    except NoServer as e:
        if getattr(e, "status", None) is None:
            raise
        raise NoServer(
            f"the server at {url} has no metrics (HTTP {e.status} for /metrics); "
            "start SGLang with --enable-metrics"
        ) from e
    try:
        page = pages.parse(body)
    except ValueError as e:
        raise NoServer(f"the metrics of {url} cannot be read: {e}") from e
    if page.engine is None:
        raise NoServer(
            f"{url}/metrics holds no metric of SGLang or vLLM: wrong port, or a server that has "
            "not served anything yet"
        )
    return page


def facts(url: str, timeout_s: float = 3.0) -> dict[str, Any]:
    """What the server was started with, from SGLang's ``/server_info``; empty without it.

    Returns
    -------
    dict
        ``version``, ``width_tokens``, ``draft_kv`` (whether drafts have KV of their own, in the
        same token slots as the target's), ``model``.
    """
    try:
        info = json.loads(get(f"{url}/server_info", timeout_s))
    except (NoServer, ValueError):
        return {}
    if not isinstance(info, dict):
        return {}
    method = info.get("speculative_algorithm")
    return {
        "version": info.get("version"),
        "model": info.get("served_model_name"),
        "width_tokens": (info.get("speculative_num_draft_tokens") or 1) if method else 1,
        "draft_kv": str(method).upper() in _LAYER,
    }

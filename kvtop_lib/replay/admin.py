"""Calls to the server that are not traffic."""

from __future__ import annotations

import urllib.error
import urllib.request

from kvtop_lib.terms import KvtopError

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy


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
        with _DIRECT.open(request, timeout=timeout_s + 10):
            return
    except urllib.error.HTTPError as e:
        text = e.read().decode("utf-8", "replace").strip()
        if e.code in (404, 405):
            raise KvtopError(
                f"{url} has no /flush_cache, so it is not SGLang; start it anew before a point and "
                "give --no-flush"
            ) from e
        raise KvtopError(f"the server did not flush its cache (HTTP {e.code}): {text}") from e
    except OSError as e:
        raise KvtopError(f"no answer from {url}/flush_cache: {e}; is the server up?") from e

"""One streamed request: its body, prepared before the send time, and its bytes, stamped as read."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp

from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.reply import Raw

clock = time.monotonic
"""The run's clock: CLOCK_MONOTONIC, shared by all processes of a host."""


def body(model: str, messages: list[dict], plan: Plan, recorded_tokens: int | None) -> bytes:
    """JSON body of a chat completion at temperature 0.

    With ``output: recorded`` the length is the recorded one and the end of sequence is ignored;
    with ``natural`` the model stops by itself, at the latest after ``max_output_tokens``.
    """
    fields: dict = {
        "model": model,
        "messages": messages,
        "temperature": 0.0,
        "max_tokens": plan.max_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_spec_tokens_details": True,
    }
    if plan.output == "recorded":
        fields |= {"max_tokens": recorded_tokens or plan.max_output_tokens, "ignore_eos": True}
    return json.dumps(fields, ensure_ascii=False).encode()


def session(timeout_s: float) -> aiohttp.ClientSession:
    """A client that reuses one connection per lane and limits silence, not length."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=600),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s),
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        read_bufsize=2**20,
        auto_decompress=False,
    )


async def send(client: aiohttp.ClientSession, url: str, data: bytes, raw: Raw) -> None:
    """Send a body and read the answer into ``raw`` until it ends; failures are noted, not raised.

    Only a cancellation is raised, after it was noted: what had arrived by then is kept.
    """
    raw.sent_s = clock()
    try:
        async with client.post(url, data=data) as response:
            async for block in response.content.iter_any():
                raw.stamps.append(clock())
                raw.buffers.append(block)
            if response.status >= 400:
                text = b"".join(raw.buffers)[:300].decode("utf-8", "replace")
                raw.failure = ("http_error", f"HTTP {response.status}: {text}")
    except asyncio.CancelledError:
        raw.failure = ("cancelled", "cancelled by the client")
        raise
    except TimeoutError:
        what = "the stream stalled" if raw.buffers else "no answer"
        raw.failure = ("timeout", f"{what}: no byte for the time limit")
    except aiohttp.ClientConnectorError as e:
        raw.failure = ("http_error", f"no connection: {e}")
    except (aiohttp.ClientError, OSError) as e:
        text = str(e) or type(e).__name__
        started = bool(raw.buffers)
        raw.failure = (
            ("truncated", f"the stream was cut: {text}")
            if started
            else ("http_error", f"connection lost before the answer: {text}")
        )
    finally:
        raw.end_s = clock()

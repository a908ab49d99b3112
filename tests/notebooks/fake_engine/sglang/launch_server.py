"""Takes the place of ``python -m sglang.launch_server`` in tests: the same flags, a script.

Found before the real package by PYTHONPATH. A request takes a known number of chunks at a known
pace: a baseline sends one token per chunk, a drafting arm two, with counters that say that every
draft was accepted. The environment of an arm can make it fail:

``FAKE_DIE_AT=n``   the process ends when n requests run at once
``FAKE_DIFFERS=x``  prompts that contain x get another last token
"""

import argparse
import asyncio
import hashlib
import os

from aiohttp import web
from scripted_server import Play, ScriptedServer

CHUNKS = 2
GAP_S = 0.15

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--speculative-algorithm")
parser.add_argument("--speculative-num-draft-tokens", type=int)
flags = parser.parse_known_args()[0]
drafting = flags.speculative_algorithm is not None
die_at = int(os.environ.get("FAKE_DIE_AT", 0))
PLAY = Play(
    bundles=(1, *((2 if drafting else 1,) * CHUNKS)),
    gap_s=GAP_S,
    hist=(0, CHUNKS) if drafting else None,
)
server = ScriptedServer(script=lambda body, n: PLAY)


def greedy(prompt: str, n: int) -> list[int]:
    """Token ids that follow from the prompt alone."""
    ids = list(hashlib.sha256(prompt.encode()).digest())[:n]
    differs = os.environ.get("FAKE_DIFFERS")
    if differs and differs in prompt:
        ids[-1] += 1000
    return ids


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if body.get("stream"):
        if die_at and server.running + 1 >= die_at:
            os._exit(3)
        return await server._chat(request)
    ids = greedy(body["messages"][-1]["content"], min(8, body["max_tokens"]))
    message = {"role": "assistant", "content": " ".join(map(str, ids))}
    choice = {"message": message, "finish_reason": "stop", "response_token_ids": ids}
    return web.json_response({"choices": [choice]})


async def info(request: web.Request) -> web.Response:
    resolved = {"max_total_num_tokens": 4096, "max_running_requests": 48}
    if drafting:
        resolved["speculative_num_draft_tokens"] = flags.speculative_num_draft_tokens
    return web.json_response(resolved)


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/health", health)
    app.router.add_get("/server_info", info)
    app.router.add_get("/model_info", server._info)
    app.router.add_get("/metrics", server._metrics)
    app.router.add_post("/flush_cache", server._flush)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", flags.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

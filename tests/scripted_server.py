"""A server that plays a script: known tokens per chunk, bundles, gaps, faults and counters.

It speaks SGLang's dialect of the OpenAI stream (role chunk without usage, cumulative usage per
chunk, a finish chunk, ``sglext`` counters, a usage chunk, ``[DONE]``), so that a client can be
judged by what is known to have been sent. It runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

FAULTS = ("error_event", "cut", "hang", "no_done", "no_finish", "garbage")


@dataclass(frozen=True)
class Play:
    """How one request is answered."""

    bundles: tuple[int, ...] = (1,) * 8  # tokens of each chunk
    first_s: float = 0.0  # before the first chunk
    gap_s: float = 0.0  # before each further chunk
    texts: tuple[str, ...] | None = None  # of each chunk; "w<i> " when not given
    prompt_tokens: int = 10
    cached_tokens: int | None = 0
    hist: tuple[int, ...] | None = None  # accepted-drafts histogram, None: no drafting
    depth: int = 1  # draft tokens proposed per step
    finish_reason: str = "stop"
    status: int = 200
    fault: str | None = None  # one of FAULTS, after `fault_after` chunks
    fault_after: int = 1
    silent_tail: int = 0  # tokens without text, known only from the last usage chunk
    usage: bool | str = True  # "last": only in the last chunk; False: never
    timings: bool = False  # llama.cpp's counts with every chunk
    reasoning: int = 0  # the first chunks are reasoning, not answer
    slices: int = 0  # cut the bytes into pieces of this size

    @property
    def tokens(self) -> int:
        """Completion tokens of the whole answer."""
        return sum(self.bundles) + self.silent_tail

    def text(self, i: int) -> str:
        """Text of chunk i."""
        return self.texts[i] if self.texts else f"w{i} "

    @property
    def whole_text(self) -> str:
        """Text of the whole answer."""
        return "".join(self.text(i) for i in range(len(self.bundles)))


@dataclass
class ScriptedServer:
    """Context manager; ``url`` is set inside.

    Attributes
    ----------
    script
        ``(request body, number of the request) -> Play``.
    bodies, sent
        What was asked; what was sent as (request number, monotonic time, tokens).
    running
        Requests that are being answered now; ``peak`` is the most there were at once.
    """

    script: Callable[[dict, int], Play] = lambda body, n: Play()
    miscount: int = 0  # tokens that the counter is wrong by, per request
    metrics: bool = True
    sglang: bool = True  # says so at /model_info
    refuses: tuple[str, ...] = ()  # fields, also of stream_options, answered with HTTP 400
    probes: list[dict] = field(default_factory=list)  # requests for one token
    bodies: list[dict] = field(default_factory=list)
    sent: list[tuple[int, float, int]] = field(default_factory=list)
    flushes: int = 0
    pages: int = 0  # of /metrics that were asked for
    running: int = 0
    peak: int = 0
    generated: int = 0
    seconds: float = 0.0  # sum of the times of the requests that were answered
    lost_seconds: float = 0.0  # that the sum is short by, per request
    url: str = ""

    def __enter__(self) -> ScriptedServer:
        self._loop, ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10), "the scripted server did not start"
        return self

    def __exit__(self, *exc) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def _serve(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._over = asyncio.Event()
            app = web.Application()
            app.router.add_post("/v1/chat/completions", self._chat)
            app.router.add_post("/v1/completions", self._chat)
            app.router.add_get("/model_info", self._info)
            app.router.add_get("/metrics", self._metrics)
            app.router.add_post("/flush_cache", self._flush)
            runner = web.AppRunner(app, shutdown_timeout=0.2)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
            ready.set()
            await self._over.wait()
            await runner.cleanup()

        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(main())

    async def _metrics(self, request: web.Request) -> web.Response:
        self.pages += 1
        if not self.metrics:
            return web.Response(status=404)
        label = '{model_name="m",is_streaming="true"}'
        text = (
            "# TYPE sglang:generation_tokens_total counter\n"
            f"sglang:generation_tokens_total{label} {self.generated}.0\n"
            "# TYPE sglang:num_running_reqs gauge\n"
            f'sglang:num_running_reqs{{model_name="m"}} {self.running}.0\n'
            "# TYPE sglang:num_queue_reqs gauge\n"
            'sglang:num_queue_reqs{model_name="m"} 0.0\n'
            "# TYPE sglang:e2e_request_latency_seconds histogram\n"
            f"sglang:e2e_request_latency_seconds_sum{label} {self.seconds}\n"
            f"sglang:e2e_request_latency_seconds_count{label} {len(self.bodies)}.0\n"
        )
        return web.Response(text=text)

    async def _info(self, request: web.Request) -> web.Response:
        if not self.sglang:
            return web.Response(status=404)
        return web.json_response({"model_path": "scripted"})

    async def _flush(self, request: web.Request) -> web.Response:
        if self.running:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.flushes += 1
        return web.Response(text="Cache flushed.\n")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body, number = await request.json(), len(self.bodies)
        probe = body["max_tokens"] == 1
        (self.probes if probe else self.bodies).append(body)
        for name in self.refuses:
            if name in body or name in body.get("stream_options", {}):
                said = {"message": f"Unrecognized request argument supplied: {name}"}
                return web.json_response({"error": said}, status=400)
        play = Play() if probe else self.script(body, number)
        if play.status != 200:
            return web.json_response({"error": {"message": "scripted"}}, status=play.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self._answer(play, number, response, request, "prompt" in body)
        finally:
            self.running -= 1
        return response

    async def _answer(self, play: Play, number: int, response, request, plain: bool) -> None:
        rid, total, began = f"chatcmpl-{number}", 0, time.monotonic()

        def chunk(delta=None, finish=None, usage=None, **more) -> bytes:
            delta_of = {"delta": {"reasoning_content": None, **(delta or {})}}
            said = {"text": (delta or {}).get("content", "")} if plain else delta_of
            choices = [] if delta is None else [{"index": 0, **said, "finish_reason": finish}]
            fields = {"id": rid, "object": "chat.completion.chunk", "choices": choices}
            if usage:
                cached = play.cached_tokens
                details = None if cached is None else {"cached_tokens": cached}
                fields["usage"] = {
                    "prompt_tokens": play.prompt_tokens,
                    "completion_tokens": usage,
                    "prompt_tokens_details": details,
                }
            return b"data: " + json.dumps(fields | more, ensure_ascii=False).encode() + b"\n\n"

        async def write(data: bytes) -> None:
            for i in range(0, len(data), play.slices or len(data)):
                await response.write(data[i : i + (play.slices or len(data))])
                if play.slices:
                    await asyncio.sleep(0)

        for i, n in enumerate(play.bundles):
            if play.fault and i == play.fault_after and await self._fault(play, write, request):
                return
            await asyncio.sleep(play.gap_s if i else play.first_s)
            if i == 0:
                await write(chunk({"role": "assistant", "content": ""}))
            total += n
            self.sent.append((number, time.monotonic(), n))
            kind = "reasoning_content" if i < play.reasoning else "content"
            counts = {"timings": {"predicted_n": total}} if play.timings else {}
            usage = total if play.usage is True else None
            await write(chunk({kind: play.text(i)}, usage=usage, **counts))
        total += play.silent_tail
        self.generated += total + self.miscount
        self.seconds += time.monotonic() - began - self.lost_seconds
        if play.fault != "no_finish":
            await write(chunk({}, finish=play.finish_reason))
        if play.hist:
            steps = sum(play.hist)
            spec = {
                "spec_verify_ct": steps,
                "spec_num_proposed_drafts": steps * play.depth,
                "spec_correct_drafts_histogram": list(play.hist),
            }
            await write(chunk(sglext={"spec_tokens_details": spec}))
        await write(chunk(usage=total if play.usage else None))
        if play.fault != "no_done":
            await write(b"data: [DONE]\n\n")

    async def _fault(self, play: Play, write, request) -> bool:
        if play.fault == "error_event":
            await write(b'data: {"error": {"message": "scripted fault", "code": 500}}\n\n')
            await write(b"data: [DONE]\n\n")
        elif play.fault == "garbage":
            await write(b"data: {not json\n\n")
        elif play.fault == "cut":
            await write(b'data: {"id": "half a li')
            request.transport.abort()
        elif play.fault == "hang":
            await asyncio.sleep(3600)
        else:
            return False
        return True

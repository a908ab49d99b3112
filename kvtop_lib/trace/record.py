"""Record what a served model answers in planned sessions, once, so that replay is on history.

    python -m kvtop_lib.trace.record --url http://127.0.0.1:30000 --model smollm2-mtp --out T.jsonl

Any OpenAI-compatible server will do; the answers are greedy (temperature 0). A stopped recording
goes on where it stopped when the same command is given again.

A small model often ends an answer in a loop or says again what it said before, and both make
drafts look better than they are. Such an answer is taken back together with its question, and the
session goes on with its next planned turn; a session that begins with such an answer, or that ends
with fewer turns than ``min_turns``, is given up. How many were taken back stays in the trace.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.agent import PlannedTurn, SessionPlan
from kvtop_lib.trace.loops import ends_in_loop, repeats
from kvtop_lib.trace.model import Session, Trace, Turn
from kvtop_lib.trace.partial import Partial
from kvtop_lib.trace.sessions_jsonl import FINISH_REASONS, write_sessions

Progress = Callable[[int], None]
"""Called with the number of finished sessions when it changes."""


@dataclass(frozen=True)
class RecordLimits:
    """What ends an answer, a session, and the wait for a reply."""

    max_output_tokens: int = 100
    session_tokens: int = 800  # a turn that would go beyond is left out, and ends its session
    min_turns: int = 3
    take_back: bool = True  # answers that loop or repeat
    timeout_s: float = 300.0


def record(
    url: str,
    plans: Sequence[SessionPlan],
    out: str | Path,
    *,
    name: str,
    sessions: int,
    concurrency: int,
    model: str = "default",
    limits: RecordLimits = RecordLimits(),
    recorded_with: dict[str, Any] | None = None,
    on_progress: Progress = lambda done: None,
) -> Trace:
    """Ask the server at ``url`` for the answers of ``plans`` until ``sessions`` of them are whole.

    Sessions run ``concurrency`` at a time, the turns of one in order. Finished sessions are kept
    in ``<out>.partial`` until all are there; then the trace, in the order of ``plans``, is
    written to ``out``.

    Raises
    ------
    KvtopError
        The server does not answer, refuses a request or reports no token counts, too many plans
        were given up, or the partial file belongs to a recording with other settings.
    """
    settings = {
        **(recorded_with or {}),
        "temperature": 0,
        "max_output_tokens": limits.max_output_tokens,
        "session_tokens": limits.session_tokens,
        "loops_taken_back": limits.take_back,
    }
    partial = Partial.open(Path(f"{out}.partial"), Trace(name, settings))
    recorder = _Recorder(url.rstrip("/"), model, sessions, limits, partial, on_progress)
    asyncio.run(recorder.run(plans, concurrency))
    whole = [partial.sessions[p.id] for p in plans if p.id in partial.sessions][:sessions]
    if len(whole) < sessions:
        raise KvtopError(
            f"Only {len(whole)} of {len(plans)} planned sessions could be recorded, not {sessions};"
            " plan more of them, or ask so that fewer answers end in a loop."
        )
    trace = Trace(name, settings, tuple(whole))
    write_sessions(trace, out)
    os.remove(partial.path)
    return trace


@dataclass(frozen=True)
class _Recorder:
    url: str
    model: str
    sessions: int
    limits: RecordLimits
    partial: Partial
    on_progress: Progress

    async def run(self, plans: Sequence[SessionPlan], concurrency: int) -> None:
        known = self.partial.sessions
        # Shared by the lanes: each takes the next session when it is free.
        waiting = iter([plan for plan in plans if plan.id not in known])
        timeout = aiohttp.ClientTimeout(total=self.limits.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as client:

            async def lane() -> None:
                while len(known) < self.sessions and (plan := next(waiting, None)):
                    if session := await self.session(client, plan):
                        self.partial.add(session)
                        self.on_progress(min(len(known), self.sessions))

            try:
                async with asyncio.TaskGroup() as lanes:
                    for _ in range(concurrency):
                        lanes.create_task(lane())
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    async def session(self, client: aiohttp.ClientSession, plan: SessionPlan) -> Session | None:
        turns: list[Turn] = []
        messages: list[dict[str, str]] = []
        withdrawn = 0
        for planned in plan.turns:
            asked = [*messages, *planned.messages]
            turn = _turn(self.url, await self.answer(client, asked), planned)
            if self.limits.take_back:
                if turn.looped or repeats(turn.output, [t.output for t in turns]):
                    if not turns:
                        return None
                    withdrawn += 1
                    continue
            if turns and turn.prompt_tokens + turn.output_tokens > self.limits.session_tokens:
                break
            turns.append(turn)
            messages = [*asked, {"role": "assistant", "content": turn.output}]
            if len(turns) == plan.keep:
                break
        enough = len(turns) >= min(self.limits.min_turns, plan.keep)
        return Session(plan.id, plan.task, tuple(turns), withdrawn) if enough else None

    async def answer(
        self, client: aiohttp.ClientSession, messages: list[dict[str, str]]
    ) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.limits.max_output_tokens,
        }
        try:
            async with client.post(f"{self.url}/v1/chat/completions", json=body) as reply:
                if reply.status != 200:
                    detail = " ".join((await reply.text()).split())[:300]
                    raise KvtopError(f"{self.url} refused a request ({reply.status}): {detail}")
                return await reply.json()
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise KvtopError(f"{self.url} does not answer: {reason}.") from None


def _turn(url: str, answer: dict[str, Any], planned: PlannedTurn) -> Turn:
    try:
        choice, usage = answer["choices"][0], answer["usage"]
        output = choice["message"]["content"] or ""
        turn = Turn(
            messages=planned.messages,
            output=output,
            output_tokens=usage["completion_tokens"],
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            think_s=planned.think_s,
            looped=ends_in_loop(output),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise KvtopError(
            f"{url} answered without {error}; recording needs a chat completion with usage."
        ) from None
    if turn.finish_reason not in FINISH_REASONS:
        raise KvtopError(
            f"{url} ended an answer with {turn.finish_reason!r}; see the server's log."
        )
    return turn


if __name__ == "__main__":
    from kvtop_lib.trace.record_cli import main

    main()

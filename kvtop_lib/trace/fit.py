"""Make a trace fit a server: shrink its tokens, cut its sessions, and say so in its header."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session, Trace, Turn

TEMPLATE_TOKENS = 64
"""Left free for the chat template where prompt tokens were not counted by a server of ours."""


def template_tokens(trace: Trace) -> int:
    """Tokens that the chat template may add to the prompts as the trace counts them."""
    return TEMPLATE_TOKENS if "source" in trace.recorded_with else 0


def cut_to_context(trace: Trace, max_context: int) -> Trace:
    """The leading turns of each session whose prompt and answer fit into ``max_context`` tokens.

    How many turns were cut and how many sessions lost all of theirs is in ``recorded_with``.

    Raises
    ------
    KvtopError
        ``max_context`` is no positive number, or not even one turn fits.
    """
    if max_context < 1:
        raise KvtopError(f"A context of {max_context} tokens holds no prompt; give 1 or more.")
    free = max_context - template_tokens(trace)
    kept = []
    for session in trace.sessions:
        fits = [t.prompt_tokens + t.output_tokens <= free for t in session.turns]
        n = fits.index(False) if False in fits else len(fits)
        if n:
            kept.append(replace(session, turns=session.turns[:n]))
    if not kept:
        least = min(s.turns[0].prompt_tokens + s.turns[0].output_tokens for s in trace.sessions)
        raise KvtopError(
            f"No turn of {trace.name} fits a context of {max_context} tokens, the shortest needs "
            f"{least + template_tokens(trace)}; scale its tokens (--scale-tokens) or raise the "
            "limit."
        )
    cut = {
        "max_context": max_context,
        "turns_cut": trace.requests - sum(len(s.turns) for s in kept),
        "sessions_cut_away": len(trace.sessions) - len(kept),
    }
    return replace(trace, sessions=tuple(kept), recorded_with={**trace.recorded_with, "cut": cut})


def scaled(trace: Trace, factor: float) -> Trace:
    """Every block, message and answer shrunk to ``factor`` of its length; sharing is preserved.

    Equal blocks stay equal and different ones different. A message keeps its beginning, so equal
    messages stay equal.

    Raises
    ------
    KvtopError
        ``factor`` is not above 0 and at most 1, or leaves blocks without a token.
    """
    if not 0 < factor <= 1:
        raise KvtopError(
            f"Tokens cannot be scaled by {factor}; give a factor above 0 and at most 1, like 0.125."
        )
    for size in {t.blocks.size for s in trace.sessions for t in s.turns if t.blocks}:
        if round(size * factor) < 1:
            raise KvtopError(
                f"Blocks of {size} tokens scaled by {factor} have none; give at least {1 / size:g}."
            )
    sessions = tuple(_session(s, factor) for s in trace.sessions)
    before = trace.recorded_with.get("scaled_tokens", 1.0)
    said: dict[str, Any] = {**trace.recorded_with, "scaled_tokens": before * factor}
    return replace(trace, sessions=sessions, recorded_with=said)


def _session(session: Session, factor: float) -> Session:
    turns, tokens = [], 0
    for k, turn in enumerate(session.turns):
        n = _block_tokens(turn, factor)
        if turn.blocks is None:
            new = turn.prompt_tokens if turn.whole else session.new_prefill_tokens(k)
            n = _share(new, factor) + (0 if turn.whole else tokens)
        turns.append(_turn(turn, n, factor))
        tokens = n + turns[-1].output_tokens
    return replace(session, turns=tuple(turns))


def _share(n: int, factor: float) -> int:
    return max(1, round(n * factor)) if n else 0


def _block_tokens(turn: Turn, factor: float) -> int:
    """Prompt tokens when each whole block has a whole number of tokens."""
    if turn.blocks is None:
        return 0
    size, n = turn.blocks.size, len(turn.blocks.ids)
    small, rest = round(size * factor), turn.prompt_tokens - size * n
    if rest >= 0:
        return small * n + _share(rest, factor)
    return small * (n - 1) + min(small, max(1, round((size + rest) * factor)))


def _turn(turn: Turn, prompt_tokens: int, factor: float) -> Turn:
    blocks = turn.blocks and replace(turn.blocks, size=round(turn.blocks.size * factor))
    messages = tuple({**m, "content": _beginning(m["content"], factor)} for m in turn.messages)
    return replace(
        turn,
        messages=messages,
        output=turn.output and _beginning(turn.output, factor),
        output_tokens=_share(turn.output_tokens, factor),
        prompt_tokens=prompt_tokens,
        blocks=blocks,
    )


def _beginning(text: str, factor: float) -> str:
    return text[: math.ceil(len(text) * factor)]

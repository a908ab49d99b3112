"""The facts of a trace, computed, as its card shows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtop_lib.trace.builtin import BUILTIN, load_trace, trace_path
from kvtop_lib.trace.model import Trace

PERCENTILES = (0, 10, 50, 90, 100)


def facts(trace: Trace) -> dict[str, Any]:
    """Counts and shares of ``trace``: sessions, requests, tokens, and shares of 0 to 1.

    ``distinct_prompts`` counts different requests (whole message lists); when it equals
    ``requests`` no prompt is used twice in one pass over the trace.
    """
    turns = [turn for session in trace.sessions for turn in session.turns]
    prompts = {
        str(session.request_messages(k))
        for session in trace.sessions
        for k in range(len(session.turns))
    }
    n = max(1, len(turns))
    return {
        "sessions": len(trace.sessions),
        "requests": len(turns),
        "distinct_prompts": len(prompts),
        "distinct_tasks": len({session.task for session in trace.sessions}),
        "output_tokens": sum(t.output_tokens for t in turns),
        "stop_share": sum(t.finish_reason == "stop" for t in turns) / n,
        "loop_share": sum(t.looped for t in turns) / n,
        "answers_taken_back": (back := sum(s.withdrawn for s in trace.sessions)),
        "share_taken_back": back / max(1, back + len(turns)),
    }


def distributions(trace: Trace) -> dict[str, list[float]]:
    """Values behind the card's percentiles: tokens per request or session, turns, seconds."""
    sessions = trace.sessions
    turns = [turn for session in sessions for turn in session.turns]
    return {
        "turns per session": [len(s.turns) for s in sessions],
        "tokens of a session at its end": [s.total_tokens for s in sessions],
        "prompt tokens": [t.prompt_tokens for t in turns],
        "new prompt tokens per turn": [
            s.new_prefill_tokens(k) for s in sessions for k in range(len(s.turns))
        ],
        "output tokens": [t.output_tokens for t in turns],
        "think time after a turn (s)": [t.think_s for s in sessions for t in s.turns[1:]],
    }


def card(trace: Trace) -> str:
    """The card's figures in Markdown: two tables and the fingerprint."""
    rows = ["| | |", "|---|---|"]
    for key, value in facts(trace).items():
        shown = f"{value:.1%}" if "share" in key else f"{value:,}"
        rows.append(f"| {key.replace('_', ' ')} | {shown} |")
    rows += ["", "| percentile | " + " | ".join(f"p{p}" for p in PERCENTILES) + " |"]
    rows.append("|---" * (1 + len(PERCENTILES)) + "|")
    for key, values in distributions(trace).items():
        if values:
            cells = " | ".join(f"{v:.4g}" for v in np.percentile(values, PERCENTILES))
            rows.append(f"| {key} | {cells} |")
    rows += ["", f"Fingerprint (SHA-256 of the file): `{trace.fingerprint}`"]
    return "\n".join(rows)


def fill_in(text: str, trace: Trace, mark: str) -> str:
    """``text`` with what stands between the marks ``<!-- mark -->`` replaced by the figures."""
    fence = f"<!-- {mark} -->"
    before, _, after = text.split(fence)
    return f"{before}{fence}\n{card(trace)}\n{fence}{after}"


def main() -> None:
    """Renew the figures in the card of the built-in traces: ``python -m kvtop_lib.trace.card``."""
    readme = trace_path("builtin:agent").with_name("README.md")
    text = readme.read_text(encoding="utf-8")
    for name in BUILTIN:
        text = fill_in(text, load_trace(name), name)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""What ``kvtop trace info`` says of a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvtop_lib.trace.fit import template_tokens
from kvtop_lib.trace.hits import ideal_hits
from kvtop_lib.trace.model import Trace

PERCENTILES = (0, 50, 90, 99, 100)
CONTEXTS = (2_048, 8_192, 32_768, 131_072)


def facts(trace: Trace, contexts: Sequence[int] = CONTEXTS) -> dict[str, Any]:
    """The trace in numbers.

    Returns
    -------
    dict
        ``sessions``, ``turns``; ``percentiles``: quantity -> values at `PERCENTILES`;
        ``arrivals``: seconds, rate and coefficient of variation (standard deviation / mean of
        the gaps) of requests with a time; ``ideal_hit``: shares of prompt tokens within sessions
        and over all; ``fit``: context -> shares of whole sessions and of turns that fit.
    """
    turns = [t for s in trace.sessions for t in s.turns]
    later = [t.think_s for s in trace.sessions for t in s.turns[1:]]
    new = [s.new_prefill_tokens(k) for s in trace.sessions for k in range(len(s.turns))]
    values = {
        "turns per session": [len(s.turns) for s in trace.sessions],
        "input tokens": [t.prompt_tokens for t in turns],
        "new input tokens": new,
        "output tokens": [t.output_tokens for t in turns],
        "think time (s)": later,
    }
    inside, overall = ideal_hits(trace, within_sessions=True), ideal_hits(trace)
    return {
        "sessions": len(trace.sessions),
        "turns": len(turns),
        "percentiles": {
            what: [float(v) for v in np.percentile(found, PERCENTILES)]
            for what, found in values.items()
            if found
        },
        "arrivals": arrivals(trace),
        "ideal_hit": {
            "within sessions, by token": inside.token_rate,
            "within sessions, by full blocks": inside.block_rate,
            "over all, by token": overall.token_rate,
            "over all, by full blocks": overall.block_rate,
        },
        "fit": {n: _fit(trace, n) for n in contexts},
    }


def arrivals(trace: Trace) -> dict[str, float] | None:
    """Seconds, requests per second and CV of the gaps between intended times; None without."""
    times = np.sort([t.at_s for s in trace.sessions for t in s.turns if t.at_s is not None])
    gaps = np.diff(times)
    if len(gaps) < 2 or gaps.mean() == 0:
        return None
    return {
        "requests": len(times),
        "distinct_times": len(np.unique(times)),
        "span_s": float(times[-1] - times[0]),
        "rate_per_s": float(1 / gaps.mean()),
        "gap_cv": float(gaps.std() / gaps.mean()),
    }


def _fit(trace: Trace, context: int) -> tuple[float, float]:
    free = context - template_tokens(trace)
    leading = []
    for session in trace.sessions:
        fits = [t.prompt_tokens + t.output_tokens <= free for t in session.turns]
        leading.append(fits.index(False) if False in fits else len(fits))
    whole = sum(n == len(s.turns) for n, s in zip(leading, trace.sessions, strict=True))
    return whole / max(1, len(leading)), sum(leading) / max(1, trace.requests)


def describe(trace: Trace) -> str:
    """`facts` as text, with what the header says."""
    found = facts(trace)
    said = trace.recorded_with
    form = said.get("source", {}).get("format", "kvtop-sessions")
    rows = [f"{trace.name}: format {form}"]
    rows += [f"{what}: {found[what]:,}" for what in ("sessions", "turns")]
    rows += ["", "| percentile | " + " | ".join(f"p{p}" for p in PERCENTILES) + " |"]
    rows.append("|---" * (1 + len(PERCENTILES)) + "|")
    for what, values in found["percentiles"].items():
        rows.append(f"| {what} | " + " | ".join(_figures(v) for v in values) + " |")
    rows.append("")
    if (a := found["arrivals"]) is None:
        rows.append("arrivals: the trace tells no times of sending")
    else:
        rows.append(
            f"arrivals: {a['requests']:,} at {a['distinct_times']:,} distinct times in "
            f"{_figures(a['span_s'])} s, {a['rate_per_s']:.4g} per s, "
            f"CV of the gaps {a['gap_cv']:.3g}"
        )
    for what, rate in found["ideal_hit"].items():
        rows.append(f"ideal prefix hit {what}: {rate:.3f}")
    for context, (sessions, turns) in found["fit"].items():
        rows.append(
            f"fit {context:,} tokens: {sessions:.1%} of sessions whole, {turns:.1%} of turns"
        )
    rows += [f"{key.replace('_', ' ')}: {_shown(value)}" for key, value in said.items() if value]
    return "\n".join([*rows, f"fingerprint: {trace.fingerprint}"])


def _figures(value: float) -> str:
    """Five figures, and no fewer than the digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.5g}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""What two pages of metrics say about the time between them."""

from __future__ import annotations

from typing import Any

from kvtop_lib.replay.pages import Page


def rates(before: Page, now: Page, span_s: float) -> dict[str, Any]:
    """Rates and acceptance between two pages.

    Output counts decoded tokens. SGLang counts those in every iteration (without the first token
    of a request, which its prefill yields), its other counters only when a request has ended.

    Parameters
    ----------
    span_s : time between the pages, seconds; 0 when there is one page only.

    Returns
    -------
    dict
        ``span_s, output_tok_s, prompt_tok_s, ttft_mean_s, accept_len, width_tokens``; None where
        the pages do not say.
    """

    def grown(column: str) -> float | None:
        if column not in now.values or span_s <= 0:
            return None
        return now.values[column] - before.values.get(column, 0.0)

    def rate(column: str) -> float | None:
        n = grown(column)
        return None if n is None else n / span_s

    def ratio(a: str, b: str) -> float | None:
        above, below = grown(a), grown(b)
        return above / below if above is not None and below else None

    live = "realtime_tokens_total"
    output = rate(live if live in now.values else "generation_tokens_total")
    accepted = ratio("accepted_drafts_total", "spec_verify_calls_total")
    proposed = ratio("proposed_drafts_total", "spec_verify_calls_total")
    gauge = now.values.get("accept_len") or None  # 0: no drafting; of SGLang's last interval
    moves = output is None or output > 0
    return {
        "span_s": span_s,
        "output_tok_s": now.values.get("gen_tok_s") if output is None else output,
        "prompt_tok_s": rate("prompt_tokens_total"),
        "ttft_mean_s": ratio("ttft_seconds_total", "ttft_requests_total"),
        "accept_len": 1 + accepted if accepted is not None else gauge if moves else None,
        "width_tokens": 1 + proposed if proposed is not None else None,
    }


def ttft_p50(before: Page, now: Page) -> float | None:
    """Median time to first token of the requests between two pages, seconds.

    Interpolated linearly inside the histogram's bucket, as Prometheus does; in the last bucket,
    which has no upper bound, the lower bound. None without a request.
    """
    earlier = dict(before.ttft)
    counts = [(bound, n - earlier.get(bound, 0.0)) for bound, n in now.ttft]
    if not counts or counts[-1][1] <= 0 or before is now:
        return None
    half, low, below = counts[-1][1] / 2, 0.0, 0.0
    for bound, n in counts:
        if n >= half:
            inside = n - below
            if bound == float("inf"):
                return low
            return low + (bound - low) * ((half - below) / inside if inside else 1.0)
        low, below = bound, n
    return None

"""What a server's token counts allow: every metric, some, or those that need no tokens."""

from __future__ import annotations

from typing import Literal

import pandas as pd

Counts = Literal["chunk", "total", "none"]

NEED_CHUNKS = (
    "output_tok_s output_tokens_window tpot_s decode_tok_s itl_s chunk_gap_s tokens_per_chunk "
    "iteration_s goodput".split()
)
"""Metrics that need a count with every chunk."""

NEED_TOTAL = ("request_tok_s", "accept_len", "accept_rate", "tokens_per_step")
"""Metrics that need the tokens of a whole request."""

REMAIN = {
    "total": "token counts per chunk not available (the server sends them at the end only): no "
    "throughput, TPOT or ITL; TTFT, end to end, request rate and requests in flight remain",
    "none": "token counts not available (the server sends no usage): no token metrics; TTFT, end "
    "to end and requests in flight remain",
}


def kind(requests: pd.DataFrame) -> Counts:
    """How the server counted tokens, by the requests with output.

    ``chunk``: with every chunk, as far as one request of the point shows; ``total``: only at the
    end of requests; ``none``: never.
    """
    spoke = requests[requests["first_token_s"].notna()]
    if spoke.empty or (spoke["uncounted_chunks"] == 0).any():
        return "chunk"
    return "total" if (spoke.loc[spoke["status"] == "ok", "output_tokens"] > 0).any() else "none"


def available(metrics: dict, counts: Counts) -> dict:
    """The metrics that these counts allow; the others are left out, not guessed."""
    gone = {"chunk": (), "total": NEED_CHUNKS, "none": (*NEED_CHUNKS, *NEED_TOTAL)}[counts]
    return {k: v for k, v in metrics.items() if k not in gone}

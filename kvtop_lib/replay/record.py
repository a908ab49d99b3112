"""Rows of ``requests.parquet`` and ``chunks.parquet``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvtop_lib.replay.prefixes import unshared_tokens
from kvtop_lib.replay.reader import NO_COUNT
from kvtop_lib.replay.reply import Raw, Reply
from kvtop_lib.trace.blocks import Blocks

_S, _N = pa.float64(), pa.int32()
REQUESTS = pa.schema(
    [
        ("request", pa.int32()),  # row id, in order of sending, whichever client process sent it
        ("response_id", pa.string()),  # the server's id
        ("lane", _N),
        ("session", pa.string()),
        ("turn", _N),
        ("phase", pa.string()),  # by the time it was sent, in an open loop by the intended one
        ("intended_s", _S),  # when the load wanted it to be sent
        ("sent_s", _S),
        ("first_byte_s", _S),
        ("first_token_s", _S),  # reasoning or answer
        ("first_answer_s", _S),
        ("last_token_s", _S),
        ("end_s", _S),
        ("prompt_tokens", _N),
        ("cached_tokens", _N),
        ("output_tokens", _N),
        ("status", pa.string()),
        ("failure", pa.string()),  # what went wrong, finer than the status
        ("error", pa.string()),
        ("http_status", _N),
        ("finish_reason", pa.string()),
        ("verify_steps", _N),
        ("accepted_hist", pa.list_(_N)),  # [i]: verify steps that accepted i drafts
        ("proposed_drafts", _N),
        ("output_sha256", pa.string()),
        ("expected_output_tokens", _N),
        ("matches_recorded", pa.bool_()),
        ("uncounted_chunks", _N),  # events with output but without a token count
        ("shared_tokens", _N),  # where not all of the prior prompt is in this one: what is
        ("unshared_tokens", _N),  # of a prompt of token blocks: in nothing that was sent before
        ("cancel_after_s", _S),  # drawn to be aborted on purpose then, null for most
        ("reused", pa.bool_()),  # sent on a connection that had served before
        ("resent", _N),  # times that such a connection was found closed before any byte
    ]
)
CHUNKS = pa.schema(
    [
        ("request", pa.int32()),
        ("recv_s", _S),
        ("tokens_total", _N),  # cumulative, by the server; null where it sent no count
    ]
)


@dataclass(frozen=True)
class Ended:
    """What is looked at of a request that has ended while others run."""

    ok: bool
    on_purpose: bool  # drawn to be aborted by the client
    output_tokens: int
    ttft_s: float | None
    error: str | None


@dataclass(frozen=True)
class Record:
    """One request: who sent it, what came back, and when."""

    request: int  # in order of sending in its process, and of all of them after `numbered`
    lane: int
    session: str
    turn: int
    phase: str
    intended_s: float
    raw: Raw
    reply: Reply
    expected_output: str | None
    expected_output_tokens: int | None
    cancel_after_s: float | None = None
    shared_tokens: int | None = None
    blocks: tuple[Blocks, int] | None = None  # of the prompt, and its tokens as the trace tells

    @property
    def ok(self) -> bool:
        """The request ended as it should."""
        return self.reply.status == "ok"

    @property
    def ended(self) -> Ended:
        """The little that is looked at at once."""
        first_s, reply = self.reply.first_token_s, self.reply
        ttft_s = None if first_s is None else first_s - self.raw.sent_s
        on_purpose = self.cancel_after_s is not None
        return Ended(self.ok, on_purpose, reply.output_tokens, ttft_s, reply.error)

    @property
    def matches_recorded(self) -> bool | None:
        """The output equals the recorded one; None where that cannot be said."""
        if not self.ok or self.expected_output is None:
            return None
        if self.reply.text_sha256 is None:
            return not self.expected_output
        return self.reply.text_sha256 == _sha256(self.expected_output)

    def row(self) -> dict:
        """The row of ``requests.parquet``."""
        raw, reply = self.raw, self.reply
        own = (
            "request", "lane", "session", "turn", "phase", "intended_s", "cancel_after_s",
            "shared_tokens",
        )  # fmt: skip
        read = (
            "response_id first_token_s first_answer_s last_token_s prompt_tokens cached_tokens "
            "output_tokens status failure error finish_reason verify_steps accepted_hist "
            "proposed_drafts"
        )
        first_byte_s = raw.stamps[0] if raw.stamps else None
        return (
            {k: getattr(self, k) for k in own}
            | {k: getattr(reply, k) for k in read.split()}
            | {
                "sent_s": raw.sent_s,
                "first_byte_s": first_byte_s if raw.first_byte_s is None else raw.first_byte_s,
                "end_s": raw.end_s,
                "output_sha256": reply.text_sha256,
                "expected_output_tokens": self.expected_output_tokens,
                "matches_recorded": self.matches_recorded,
                "uncounted_chunks": reply.uncounted,
                "http_status": raw.http_status,
                "reused": raw.reused,
                "resent": raw.resent,
            }
        )


def numbered(*processes: Sequence[Record]) -> list[Record]:
    """Records of all client processes in order of sending, and numbered so."""
    sent = [(r.raw.sent_s, i, r.request) for i, part in enumerate(processes) for r in part]
    every = [r for part in processes for r in part]
    order = sorted(range(len(every)), key=sent.__getitem__)
    return [replace(every[j], request=n) for n, j in enumerate(order)]


def write(records: Sequence[Record], folder: Path) -> None:
    """Write both tables; requests in order of sending."""
    records = sorted(records, key=lambda r: r.request)
    own = unshared_tokens(records)
    rows = [r.row() | {"unshared_tokens": own.get(r.request)} for r in records]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")
    pq.write_table(_chunks(records), folder / "chunks.parquet")


def _chunks(records: Sequence[Record]) -> pa.Table:
    lengths = [len(r.reply.times) for r in records]
    numbers = np.repeat(np.array([r.request for r in records], np.int32), lengths)
    empty = [np.empty(0)]
    times = np.concatenate([np.asarray(r.reply.times, float) for r in records] or empty)
    totals = np.concatenate([np.asarray(r.reply.totals, np.int32) for r in records] or empty)
    counted = pa.array(totals.astype(np.int32), mask=totals == NO_COUNT)
    return pa.table([pa.array(numbers), pa.array(times), counted], schema=CHUNKS)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

"""Rows of ``requests.parquet`` and ``chunks.parquet``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvtop_lib.replay.reply import Raw, Reply

_S, _N = pa.float64(), pa.int32()
REQUESTS = pa.schema(
    [
        ("request", pa.int32()),  # row id, in order of sending
        ("response_id", pa.string()),  # the server's id
        ("lane", _N),
        ("session", pa.string()),
        ("turn", _N),
        ("phase", pa.string()),  # by the time it was sent
        ("intended_s", _S),  # when its lane was ready to send it
        ("sent_s", _S),
        ("first_byte_s", _S),
        ("first_token_s", _S),
        ("last_token_s", _S),
        ("end_s", _S),
        ("prompt_tokens", _N),
        ("cached_tokens", _N),
        ("output_tokens", _N),
        ("status", pa.string()),
        ("error", pa.string()),
        ("finish_reason", pa.string()),
        ("verify_steps", _N),
        ("accepted_hist", pa.list_(_N)),  # [i]: verify steps that accepted i drafts
        ("proposed_drafts", _N),
        ("output_sha256", pa.string()),
        ("expected_output_tokens", _N),
        ("matches_recorded", pa.bool_()),
        ("uncounted_chunks", _N),  # events with text but without a token count
    ]
)
CHUNKS = pa.schema([("request", pa.int32()), ("recv_s", _S), ("tokens_total", _N)])


@dataclass(frozen=True)
class Record:
    """One request: who sent it, what came back, and when."""

    request: int
    lane: int
    session: str
    turn: int
    phase: str
    intended_s: float
    raw: Raw
    reply: Reply
    expected_output: str | None
    expected_output_tokens: int | None

    @property
    def ok(self) -> bool:
        """The request ended as it should."""
        return self.reply.status == "ok"

    @property
    def matches_recorded(self) -> bool | None:
        """The output equals the recorded one; None where that cannot be said."""
        if not self.ok or self.expected_output is None:
            return None
        return self.reply.text == self.expected_output

    def row(self) -> dict:
        """The row of ``requests.parquet``."""
        raw, reply = self.raw, self.reply
        own = ("request", "lane", "session", "turn", "phase", "intended_s")
        read = (
            "response_id first_token_s last_token_s prompt_tokens cached_tokens output_tokens "
            "status error finish_reason verify_steps accepted_hist proposed_drafts"
        )
        digest = hashlib.sha256(reply.text.encode()).hexdigest() if reply.texts else None
        return (
            {k: getattr(self, k) for k in own}
            | {k: getattr(reply, k) for k in read.split()}
            | {
                "sent_s": raw.sent_s,
                "first_byte_s": raw.stamps[0] if raw.stamps else None,
                "end_s": raw.end_s,
                "output_sha256": digest,
                "expected_output_tokens": self.expected_output_tokens,
                "matches_recorded": self.matches_recorded,
                "uncounted_chunks": reply.uncounted,
            }
        )


def write(records: Sequence[Record], folder: Path) -> None:
    """Write both tables; requests in order of sending."""
    records = sorted(records, key=lambda r: r.request)
    rows = [r.row() for r in records]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")
    chunks = [(r.request, *chunk) for r in records for chunk in r.reply.chunks]
    columns = list(zip(*chunks, strict=True)) or [[], [], []]
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, CHUNKS, strict=True)], schema=CHUNKS
    )
    pq.write_table(table, folder / "chunks.parquet")

"""Tables of requests with a time and two lengths: Azure LLM inference and BurstGPT."""

from __future__ import annotations

import contextlib
from typing import Any

from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import Session, Turn
from kvtop_lib.trace.readers.fields import cell, get, moment, seconds
from kvtop_lib.trace.readers.rows import Rows

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def is_azure(row: dict[str, Any]) -> bool:
    """Whether the table has Azure's columns."""
    return row.keys() >= set(AZURE)


def is_burstgpt(row: dict[str, Any]) -> bool:
    """Whether the table has BurstGPT's columns."""
    return row.keys() >= set(BURSTGPT)


def lengths_turn(at_s: float, prompt_tokens: int, output_tokens: int) -> Turn:
    """A request of which only lengths are known: its prompt is unique."""
    return Turn(
        (), None, output_tokens, "unknown", prompt_tokens, blocks=Blocks.of((), 16), at_s=at_s
    )


def read_azure(rows: Rows) -> list[Session]:
    """One session per row; ``TIMESTAMP`` is a date and time."""

    def at_s(row: dict[str, Any]) -> float:
        return moment(get(row, "TIMESTAMP", str), "TIMESTAMP")

    return _read(rows, at_s, *AZURE[1:], left_out="requests with an answer of 0 tokens")


def read_burstgpt(rows: Rows) -> list[Session]:
    """One session per row; a response of 0 tokens is a failed request of the source."""

    def at_s(row: dict[str, Any]) -> float:
        told: str | float = get(row, "Timestamp", str)
        with contextlib.suppress(ValueError):
            told = float(told)
        return seconds({"Timestamp": told}, "Timestamp")

    return _read(rows, at_s, *BURSTGPT[1:], left_out="requests that failed in the source")


def _read(rows: Rows, at_s: Any, prompt: str, output: str, left_out: str) -> list[Session]:
    def turn(row: dict[str, Any]) -> Turn | None:
        at, n, m = at_s(row), cell(row, prompt, 1), cell(row, output)
        return lengths_turn(at, n, m) if m else None

    sessions = []
    for line, found in rows.each(turn):
        if found is None:
            rows.left_out[left_out] += 1
        else:
            sessions.append(Session(rows.line_id(line), "request", (found,)))
    return sessions

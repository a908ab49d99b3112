"""Coding-agent sessions without text: WEKA / AgentX files and TraceLab rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import Session, Turn
from kvtop_lib.trace.readers.fields import (
    Bad,
    count,
    fit_blocks,
    get,
    ids,
    moment,
    name,
    record,
    seconds,
)  # fmt: skip
from kvtop_lib.trace.readers.rows import Rows

TRACELAB_BLOCK = 16
NO_ANSWER = "requests with an answer of 0 tokens"
INPUT_EVENTS = ("user_message", "tool_result")


def is_weka(row: dict[str, Any]) -> bool:
    """Whether a record is a WEKA / AgentX session."""
    return isinstance(row.get("requests"), list) and "block_size" in row


def is_tracelab(row: dict[str, Any]) -> bool:
    """Whether a record is a round of TraceLab."""
    return row.keys() >= {"session_id", "round_index", "input_tokens_total"}


def read_weka(rows: Rows) -> list[Session]:
    """A session per record and one per subagent in it, which share the record's identities."""
    return [
        session
        for _, found in rows.each(lambda row: list(_weka(record(row), rows)))
        for session in found
    ]


def _weka(row: dict[str, Any], rows: Rows) -> Iterator[Session]:
    id, size = name(row, "id"), count(row, "block_size")
    scope = id if row.get("hash_id_scope", "local") == "local" else ""
    waiting = [(id, "coding agent", get(row, "requests", list))]
    while waiting:
        own, task, requests = waiting.pop(0)
        turns, before, agents = [], None, 0
        for i, item in enumerate(requests):
            try:
                item = record(item, "it")
                if item.get("type") == "subagent":
                    agents += 1
                    nested = get(item, "requests", list)
                    waiting.append((f"{own}/agent-{agents}", "subagent", nested))
                    continue
                turn = _weka_turn(item, before, size, scope)
            except Bad as error:
                raise Bad(f"request {i} of {own}: {error}") from None
            before = item
            if turn.output_tokens:
                turns.append(turn)
            else:
                rows.left_out[NO_ANSWER] += 1
        if turns:
            yield Session(own, task, tuple(turns))
        else:
            rows.left_out["sessions without an answer"] += 1


def _weka_turn(item: dict[str, Any], before: dict | None, size: int, scope: str) -> Turn:
    tokens, output_tokens = count(item, "in"), count(item, "out", 0)
    found = fit_blocks(ids(item), size, tokens, '"in"')
    think_s = seconds(item, "think_time")
    if "think_time" not in item and before is not None:
        gap = seconds(item, "t") - seconds(before, "t") - seconds(before, "api_time")
        think_s = round(max(0.0, gap), 3)
    blocks = Blocks(found, size, scope)
    return Turn((), None, output_tokens, "unknown", tokens, think_s, blocks=blocks)


def read_tracelab(rows: Rows) -> list[Session]:
    """A session per ``session_id``, its rounds in the order of ``round_index``."""
    groups: dict[str, list[tuple]] = {}
    for _, found in rows.each(_round):
        if found[3]:
            groups.setdefault(found[0], []).append(found)
        else:
            rows.left_out[NO_ANSWER] += 1
    return [
        Session(key, "coding agent", _rounds(key, sorted(group, key=lambda r: r[1])))
        for key, group in groups.items()
    ]


def _round(row: Any) -> tuple[str, int, int, int, int, float | None, float | None]:
    """Session, index, prompt, output and prefix tokens, time of sending, time of the end."""
    row = record(row)
    tokens = count(row, "input_tokens_total")
    prefix = count(row, "prefix_tokens", 0) if row.get("prefix_tokens") is not None else 0
    sent, ended = [], []
    events = get(row, "timing_events", list) if row.get("timing_events") else []
    for event in events:
        event = record(event, "a timing event")
        if event.get("timestamp") is not None:
            at_s = moment(event["timestamp"], "timestamp")
            (sent if event.get("event_type") in INPUT_EVENTS else ended).append(at_s)
    lengths = (tokens, count(row, "output_tokens", 0), min(prefix, tokens))
    times = (max(sent, default=min(ended, default=None)), max(ended, default=None))
    return name(row, "session_id"), count(row, "round_index", 0), *lengths, *times


def _rounds(key: str, rounds: list[tuple]) -> tuple[Turn, ...]:
    """Turns that keep as many leading blocks of the round before as were cached in the source."""
    turns: list[Turn] = []
    held: list[int] = []
    fresh, ended_s = 0, None
    for _, _, tokens, output_tokens, prefix, sent_s, end_s in rounds:
        kept = held[: prefix // TRACELAB_BLOCK]
        more = max(0, tokens // TRACELAB_BLOCK - len(kept))
        held = [*kept, *range(fresh, fresh + more)][: tokens // TRACELAB_BLOCK]
        fresh += more
        known = turns and ended_s is not None and sent_s is not None
        think_s = round(max(0.0, sent_s - ended_s), 3) if known else 0.0
        blocks = Blocks.of(held, TRACELAB_BLOCK, key)
        turns.append(
            Turn((), None, output_tokens, "unknown", tokens, think_s, blocks=blocks, at_s=sent_s)
        )
        ended_s = end_s
    return tuple(turns)

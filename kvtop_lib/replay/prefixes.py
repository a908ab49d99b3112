"""What prompts of token blocks had in common with anything sent before in the point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kvtop_lib.trace.blocks import Blocks

SEVERAL = -1


class Sent(Protocol):
    """What is read of a `kvtop_lib.replay.record.Record`."""

    request: int
    blocks: tuple[Blocks, int] | None
    raw: Any
    reply: Any


def unshared_tokens(records: Sequence[Sent]) -> dict[int, int]:
    """Tokens of each prompt of token blocks that no request sent before it had.

    A prompt may hit whatever another request had brought before its own first token: the server
    need not prefill in the order of sending. A server with more hits has kept text of an
    earlier point.

    Returns
    -------
    dict
        By row id (``request``); requests of recorded text are not in it.
    """
    asked = [r for r in records if r.blocks]
    sent = [(r.raw.sent_s, 0, r) for r in asked]
    served = [(r.reply.first_token_s or r.raw.end_s, 1, r) for r in asked]
    tree, found = _Prompts(), {}
    for _, later, r in sorted(sent + served, key=lambda e: (e[0], e[1], e[2].request)):
        blocks, tokens = r.blocks
        if later:
            found[r.request] = tokens - tree.common(r.request, blocks, tokens)
        else:
            tree.add(r.request, blocks, tokens)
    return found


class _Prompts:
    """Prompts as paths of blocks; a node knows the two largest fillings of different requests."""

    def __init__(self) -> None:
        self._children: dict[tuple, int] = {}
        self._filled: list[tuple[int, int, int]] = []  # most tokens, whose, most of any other

    def add(self, request: int, blocks: Blocks, tokens: int) -> None:
        for key, n in self._path(blocks, tokens):
            node = self._children.setdefault(key, len(self._filled))
            if node == len(self._filled):
                self._filled.append((n, request, 0))
                continue
            most, whose, other = self._filled[node]
            longer = (n, request, most) if n > most else (most, whose, max(n, other))
            self._filled[node] = longer

    def common(self, request: int, blocks: Blocks, tokens: int) -> int:
        """Leading tokens of a prompt, itself added before, that another one has too."""
        shared = 0
        for key, n in self._path(blocks, tokens):
            most, whose, other = self._filled[self._children[key]]
            there = min(n, other if whose == request else most)
            shared += there
            if there < n:
                break
        return shared

    def _path(self, blocks: Blocks, tokens: int) -> Iterator[tuple[tuple, int]]:
        parent: Any = (blocks.scope, blocks.size)
        for id, n in blocks.filled(tokens):
            yield (parent, id), n
            parent = self._children[parent, id]

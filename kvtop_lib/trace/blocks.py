"""Identities of token blocks, of which the prompts of traces without text are made."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """Identities of a prompt's tokens, for traces that tell no text.

    Two blocks of equal id, size and scope hold the same tokens, all others differ. The ids cover
    the prompt from its first token on: the last block may be filled only partly, and what lies
    behind the last block is unique to its request. No ids: the whole prompt is unique.
    """

    ids: array  # int64
    size: int  # tokens per block
    scope: str = ""  # namespace of the ids; "": all of the trace

    @classmethod
    def of(cls, ids: Iterable[int], size: int, scope: str = "") -> Blocks:
        """From whole numbers within 64 bits."""
        return cls(array("q", ids), size, scope)

    def filled(self, prompt_tokens: int) -> Iterator[tuple[int, int]]:
        """Id and tokens of each block of a prompt of ``prompt_tokens`` tokens."""
        left = prompt_tokens
        for id in self.ids:
            yield id, min(self.size, left)
            left -= self.size

    def unique_tokens(self, prompt_tokens: int) -> int:
        """Tokens behind the last block."""
        return max(0, prompt_tokens - self.size * len(self.ids))


def shared_tokens(a: Blocks, a_tokens: int, b: Blocks, b_tokens: int) -> int:
    """Leading tokens that two prompts of ``a_tokens`` and ``b_tokens`` tokens have in common."""
    if (a.scope, a.size) != (b.scope, b.size):
        return 0
    shared = 0
    for (mine, n), (its, m) in zip(a.filled(a_tokens), b.filled(b_tokens), strict=False):
        if mine != its:
            break
        shared += min(n, m)
        if n != m:
            break
    return shared

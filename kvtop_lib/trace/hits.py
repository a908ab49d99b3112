"""The prefix-cache hits of a trace with a cache that forgets nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kvtop_lib.trace.agent import CHARS_PER_TOKEN
from kvtop_lib.trace.model import Session, Trace

Units = Iterator[tuple[Hashable, int]]
"""Identity and tokens of each part of a prompt, in order."""


@dataclass(frozen=True)
class Hits:
    """Prompt tokens of a trace, and how many of them a prefix cache without limits holds.

    ``full_blocks`` counts only blocks that are filled, ``tokens`` also the common part of a
    partly filled last one. Of recorded messages whole messages are compared, so that the two are
    equal and a common beginning of two different messages does not count; recorded answers are
    in the cache as if the server had given them.
    """

    prompt_tokens: int
    tokens: int
    full_blocks: int

    @property
    def token_rate(self) -> float:
        """Share of the prompt tokens, by token."""
        return self.tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def block_rate(self) -> float:
        """Share of the prompt tokens, by full blocks."""
        return self.full_blocks / self.prompt_tokens if self.prompt_tokens else 0.0


def ideal_hits(trace: Trace, within_sessions: bool = False) -> Hits:
    """Hits of all requests in the order in which they are sent.

    Parameters
    ----------
    within_sessions
        Every session has a cache of its own; else one cache serves all, in which identities are
        the same wherever their scope is.
    """
    tree, total, tokens, full = _Tree(), 0, 0, 0
    for session, k in in_order(trace):
        turn = session.turns[k]
        scope = turn.blocks.scope if turn.blocks else "messages"
        size = turn.blocks.size if turn.blocks else None
        root = (session.id if within_sessions else "", scope, size)
        if turn.blocks:
            found = tree.visit(root, turn.blocks.filled(turn.prompt_tokens), size)
        else:
            found = tree.visit(root, message_units(session, k), None)
            tree.visit(root, (*message_units(session, k), _answer(session, k)), None)
        total, tokens, full = total + turn.prompt_tokens, tokens + found[0], full + found[1]
    return Hits(total, tokens, full)


def in_order(trace: Trace) -> Iterator[tuple[Session, int]]:
    """Sessions and turns by their intended times; without times in the order of the file."""
    timed = []
    for number, session in enumerate(trace.sessions):
        at_s = 0.0
        for k, turn in enumerate(session.turns):
            at_s = max(at_s, turn.at_s if turn.at_s is not None else at_s + turn.think_s)
            known = session.turns[0].at_s is not None
            timed.append((at_s if known else 0.0, number, k, session))
    timed.sort(key=lambda t: t[:3])
    yield from ((session, k) for *_, k, session in timed)


def message_units(session: Session, k: int) -> Units:
    """Messages of turn ``k``'s prompt; its tokens are shared out by characters."""
    first = max((j for j in range(k + 1) if session.turns[j].whole), default=0)
    for j in range(first, k + 1):
        turn, before = session.turns[j], session.turns[j - 1] if j > first else None
        new = turn.prompt_tokens - (before.prompt_tokens + before.output_tokens if before else 0)
        chars = [len(m["content"]) + 5 * CHARS_PER_TOKEN for m in turn.messages]
        done = at = 0
        for message, n in zip(turn.messages, chars, strict=True):
            done += n
            upto = round(max(0, new) * done / sum(chars))
            yield (message["role"], message["content"]), upto - at
            at = upto
        if j < k:
            yield _answer(session, j)


def _answer(session: Session, k: int) -> tuple[Hashable, int]:
    """Identity and tokens of the answer of turn ``k``; one without text is its session's own."""
    turn = session.turns[k]
    return (
        "assistant",
        (session.id, k) if turn.output is None else turn.output,
    ), turn.output_tokens


@dataclass
class _Tree:
    """Prompts as paths from a root; a node knows the most tokens that its block was filled with."""

    children: dict[tuple[Hashable, Hashable], int] = field(default_factory=dict)
    filled: list[int] = field(default_factory=list)

    def visit(self, root: Hashable, units: Units, size: int | None) -> tuple[int, int]:
        """Tokens and tokens in full blocks that were there; then all of the prompt is."""
        node, hit, tokens, full = root, True, 0, 0
        for identity, n in units:
            child = self.children.get((node, identity))
            if child is None:
                hit = False
                child = self.children[(node, identity)] = len(self.filled)
                self.filled.append(0)
            if hit:
                common = min(n, self.filled[child])
                tokens += common
                full += common if size is None or common == size else 0
                hit = common == n
            self.filled[child] = max(self.filled[child], n)
            node = child
        return tokens, full

"""Tokens of a prompt that nothing sent before had: by hand, and against a slow reference."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd
from replay_help import PLAN, play_point
from scripted_server import ScriptedServer

from kvtop_lib.replay.prefixes import unshared_tokens
from kvtop_lib.trace.blocks import Blocks, shared_tokens
from kvtop_lib.trace.model import Session, Turn


@dataclass
class Sent:
    request: int
    blocks: tuple[Blocks, int] | None
    raw: SimpleNamespace
    reply: SimpleNamespace


def sent(number, ids, tokens, sent_s, first_s, size=10, scope="", end_s=100.0):
    times = SimpleNamespace(sent_s=sent_s, end_s=end_s), SimpleNamespace(first_token_s=first_s)
    return Sent(number, (Blocks.of(ids, size, scope), tokens), *times)


def test_by_hand():
    found = unshared_tokens(
        [
            sent(0, [1, 2], 20, 0.0, 1.0),
            sent(1, [1, 2, 3], 26, 2.0, 3.0),  # 6 of its last block are its own
            sent(2, [1, 2, 3], 30, 4.0, 5.0),  # 4 tokens of block 3 are new
            sent(3, [2, 1], 20, 6.0, 7.0),  # the same blocks at another place
            sent(4, [1], 15, 8.0, 9.0),  # 5 behind its block are unique
            sent(5, [1, 2], 20, 8.0, 9.0, scope="x"),
            sent(6, [1, 2], 40, 8.0, 9.0, size=20),
            sent(7, [], 12, 8.0, 9.0),
            Sent(8, None, SimpleNamespace(sent_s=9.0), SimpleNamespace(first_token_s=9.5)),
        ]
    )
    assert found == {0: 20, 1: 6, 2: 4, 3: 20, 4: 5, 5: 20, 6: 40, 7: 12}


def test_what_is_sent_before_the_first_token_counts_and_later_not():
    a, b = sent(0, [1, 2], 20, 0.0, 5.0), sent(1, [1, 3], 20, 1.0, 2.0)
    assert unshared_tokens([b, a]) == {0: 10, 1: 10}  # b may be prefilled before a
    late = sent(1, [1, 3], 20, 6.0, 7.0)
    assert unshared_tokens([a, late]) == {0: 20, 1: 10}
    dead = sent(0, [1, 2], 20, 0.0, None, end_s=0.5)  # no token ever: until its end
    assert unshared_tokens([dead, late]) == {0: 20, 1: 10}


def test_against_a_slow_reference():
    rng = random.Random(4)
    records = [
        sent(i, [rng.randrange(2) for _ in range(rng.randrange(1, 6))], 0, float(i), i + 0.5)
        for i in range(200)
    ]
    for r in records:
        r.blocks = (r.blocks[0], 10 * len(r.blocks[0].ids))
    expected = {
        r.request: r.blocks[1] - max((shared_tokens(*r.blocks, *b.blocks) for b in records[:i]),
                                     default=0)
        for i, r in enumerate(records)
    }  # fmt: skip
    assert unshared_tokens(records) == expected


class Words:
    """Text of a prompt of blocks, for a server that does not read it."""

    def prompt(self, session, k):
        return f"{session.id} {k}"

    def answer(self, session, k):
        return "yes"


def test_the_records_tell_them(tmp_path):
    def turn(ids):
        return Turn((), None, 4, "unknown", 10 * len(ids), blocks=Blocks.of(ids, 10))

    given = [
        Session("a", "", (turn([1, 2]), turn([1, 2, 3]), turn([1, 4])), text=Words()),
        Session("b", "", (turn([1, 2, 5]),), text=Words()),
    ]
    with ScriptedServer() as server:
        requests, _, _ = play_point(server, tmp_path, plan=PLAN, sessions=given)
    told = requests.set_index(["session", "turn"])
    assert told["shared_tokens"].to_dict() == {("a", 0): 0, ("a", 1): 20, ("a", 2): 10, ("b", 0): 0}
    own = told["unshared_tokens"].to_dict()
    assert (own["a", 1], own["a", 2]) == (10, 10)
    assert (own["a", 0], own["b", 0]) in [(20, 10), (0, 30)]  # whichever the seed plays first
    assert pd.api.types.is_numeric_dtype(requests["unshared_tokens"])


def test_text_behind_a_turn_of_blocks_does_not_hold_its_prompt():
    blocks = Turn((), None, 4, "unknown", 20, blocks=Blocks.of([1, 2], 10))
    text = Turn(({"role": "user", "content": "x"},), None, 4, "unknown", 30)
    whole = Turn(({"role": "user", "content": "y"},), None, 4, "unknown", 30, whole=True)
    mixed = Session("a", "", (blocks, text, text, whole))
    assert [mixed.follows(k) for k in range(4)] == [False, False, True, False]
    assert [mixed.shared_tokens(k) for k in (1, 3)] == [0, 0]

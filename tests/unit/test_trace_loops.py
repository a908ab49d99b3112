"""The loop rule on hand-written answers whose verdict a reader can check."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.trace.loops import ends_in_loop, repeats

LOOPS = [
    # three copies of a sentence
    "First a word. It reads the file. It reads the file. It reads the file.",
    # the last copy is cut short, and so is its last word
    "The plan holds. It is a good example of a file. It is a good example of a file. "
    "It is a good example of a file. It is a go",
    # a numbered list of one sentence
    "1. The use of a cache.\n2. The use of a cache.\n3. The use of a cache.",
    # a short phrase, twelve words of it
    "data pipeline, the data pipeline, the data pipeline, the data pipeline, the data",
    # one word without blanks between
    "version 1.1.1.1.1.1.1.1.1.1",
    "no " * 12,
]
NO_LOOPS = [
    "",
    "yes",
    "The file holds paths.",
    # two copies are not three
    "It reads the file. It reads the file.",
    # a loop that the answer leaves again
    "It reads the file. It reads the file. It reads the file. Then it stops and says goodbye.",
    # a short phrase said three times is emphasis
    "very very very good, very very very",
    "no " * 11,
    # the same beginning, different ends
    "It reads the file. It reads the disk. It reads the clock. It reads the mail.",
]


@pytest.mark.parametrize("text", LOOPS)
def test_loops(text):
    assert ends_in_loop(text)


@pytest.mark.parametrize("text", NO_LOOPS)
def test_no_loops(text):
    assert not ends_in_loop(text)


WORDS = st.lists(st.sampled_from(["ax", "bo", "cy", "du", "em"]), max_size=40)


def slow_loop(words: list[str]) -> bool:
    """Slow reference: spell the loop out for every phrase, and compare whole tails."""
    for n in range(1, len(words) + 1):
        for phrase_start in range(len(words) - n + 1):
            phrase = words[phrase_start : phrase_start + n]
            needed = 3 * max(n, 4)
            if needed <= len(words):
                spelled = (phrase * (needed // n + 2))[:needed]
                if words[-needed:] == spelled:
                    return True
    return False


@given(WORDS)
def test_against_loops_spelled_out(words):
    expected = slow_loop(words) or slow_loop(words[:-1])
    assert ends_in_loop(" ".join(words)) == expected


@pytest.mark.parametrize(
    ("text", "earlier", "expected"),
    [
        ("It reads the file.", ["It reads the file."], True),
        ("It reads the file.", [], False),
        ("Yes", ["Yes"], True),
        ("", ["It reads the file."], False),
        # phrases of 4 of "a b c d e f": abcd bcde cdef; known are 2 of 3, then 1 of 3
        ("a b c d e f", ["x a b c d e"], True),
        ("a b c d e f", ["x a b c d"], False),
        # said before in the answer itself: 5 of its 9 phrases, then 4 of 8
        ("a b c d a b c d a b c d", [], True),
        ("a b c d a b c d a b c", [], False),
        # known from two earlier answers together, whatever the case
        ("a b c d e f", ["A B C D", "C D E F"], True),
    ],
)
def test_repetition(text, earlier, expected):
    assert repeats(text, earlier) is expected

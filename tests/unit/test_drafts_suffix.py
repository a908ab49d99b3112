"""The n-gram index, in C and in Python, against a search through the whole text."""

import array
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.sglang_plugin.drafts import suffix


def slow(text, min_match, depth, window):
    """The longest match among the latest `CANDIDATES` ends of the last m-gram."""
    n, oldest = len(text), max(len(text) - window, 0)
    gram = text[n - min_match :]
    ends = [
        e
        for e in range(n - 2, oldest + min_match - 2, -1)
        if text[e - min_match + 1 : e + 1] == gram
    ]
    best, at = 0, -1
    for e in ends[: suffix.CANDIDATES]:
        length = 0
        while (
            length < suffix.MAX_MATCH
            and e - length >= oldest
            and text[e - length] == text[n - 1 - length]
        ):
            length += 1
        if length > best:
            best, at = length, e
    grown = list(text)
    for i in range(depth if best else 0):
        grown.append(grown[at + 1 + i])
    return best, grown[n:]


@pytest.fixture(params=["NativeIndex", "PythonIndex"])
def kind(request):
    if request.param == "NativeIndex" and suffix.native() is None:
        reason = "no C compiler"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return getattr(suffix, request.param)


KINDS = [suffix.PythonIndex] + ([suffix.NativeIndex] if suffix.native() else [])


@given(
    text=st.lists(st.integers(0, 3), max_size=120),
    min_match=st.integers(1, 4),
    window=st.sampled_from([8, 16, 64]),
    cut=st.integers(0, 120),
)
def test_every_step_is_that_of_a_search(text, min_match, window, cut):
    for kind in KINDS:
        index = kind(min_match, window)
        index.extend(text[:cut])
        for n in range(cut, len(text)):
            index.extend(text[n : n + 1])
            assert index.propose(3) == slow(text[: n + 1], min_match, 3, window)


def test_both_agree_on_a_long_text(kind):
    rng = random.Random(3)
    phrases = [[rng.randrange(50_000) for _ in range(rng.randrange(3, 30))] for _ in range(200)]
    text = [t for _ in range(600) for t in rng.choice(phrases)]
    index = kind(3, 4096)
    for start in range(0, len(text), 997):
        index.extend(array.array("q", text[start : start + 997]))
        seen = text[: index.tokens]
        assert index.propose(5) == slow(seen, 3, 5, 4096)
    assert index.tokens == len(text) > 2 * 4096


def test_what_followed_is_proposed(kind):
    index = kind(2)
    index.extend([7, 8, 9, 10, 11, 1, 7, 8])
    assert index.propose(3) == (2, [9, 10, 11])
    index.extend([9])
    assert index.propose(2) == (3, [10, 11])
    index.extend([99])
    assert index.propose(2) == (0, [])


def test_a_repetition_goes_on(kind):
    index = kind(2)
    index.extend([5, 1, 2, 3, 1, 2, 3])
    assert index.propose(7) == (3, [1, 2, 3, 1, 2, 3, 1])


def test_the_longest_match_wins_over_the_latest(kind):
    index = kind(2)
    index.extend([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4])
    assert index.propose(1) == (4, [50])
    latest = kind(2)
    latest.extend([3, 4, 50, 9, 3, 4, 60, 7, 3, 4])
    assert latest.propose(1) == (2, [60])


def test_nothing_before_enough_tokens(kind):
    index = kind(3)
    for token in (4, 4, 4):
        assert index.propose(2) == (0, [])
        index.extend([token])
    assert index.propose(2) == (0, [])
    index.extend([4])
    assert index.propose(2) == (3, [4, 4])


@pytest.mark.parametrize("expected", [0, 1, 1500, 2048, 9000])
def test_what_was_expected_changes_no_answer_and_growing_is_spared(kind, expected):
    rng = random.Random(expected)
    text = [rng.randrange(4) for _ in range(2048)]
    index = kind(3, 4096, expected_tokens=expected)
    for start in range(0, len(text), 64):
        index.extend(text[start : start + 64])
        assert index.propose(4) == slow(text[: start + 64], 3, 4, 4096)
    if kind is suffix.NativeIndex:  # 1,024 slots at first; doubling them links those anew
        assert index.relinked == (1024 if expected <= 1024 else 0)


def test_python_memory_is_bounded():
    index = suffix.PythonIndex(2, 64)
    index.extend(list(range(1000)))
    assert len(index._token) == len(index._prev) == 64 and len(index._head) <= 64

"""Does an output end in a loop, or say again what was said? Both make drafts look too good.

Words are runs of letters or digits, and single punctuation marks; all numbers count as the same
word, so that a numbered list of one sentence is a loop too.

Loop: the tail of the output is at least ``MIN_REPEATS`` copies of one phrase, in which a phrase of
fewer than ``MIN_WORDS`` words must be repeated until it covers as much as ``MIN_REPEATS`` copies
of ``MIN_WORDS`` words. A last copy that the token limit cut short counts for the words it has.

Repetition: more than ``REPEATED_SHARE`` of the output's phrases of ``MIN_WORDS`` words were said
before, in earlier outputs of the session or earlier in the output itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_WORDS = 4
MIN_REPEATS = 3
REPEATED_SHARE = 0.5

_WORD = re.compile(r"\d+|[^\W\d]+|[^\w\s]")


def ends_in_loop(text: str) -> bool:
    """Whether ``text`` ends in a loop by the rule of this module.

    The text is also looked at without its last word, which a token limit may have cut in two.
    """
    words = _words(text)
    return _tail_repeats(words) or _tail_repeats(words[:-1])


def _tail_repeats(words: list[str]) -> bool:
    """Whether the tail has a period of n words and is ``MIN_REPEATS`` x max(n, MIN_WORDS) long.

    A tail has the period n when every word in it equals the one n places before, which also
    covers a last copy that was cut short.
    """
    for n in range(1, len(words) // MIN_REPEATS + 1):
        run = 0  # words at the end that equal the word n places before them
        while run < len(words) - n and words[-1 - run] == words[-1 - run - n]:
            run += 1
        if run + n >= MIN_REPEATS * max(n, MIN_WORDS):
            return True
    return False


def repeats(text: str, earlier: Iterable[str] = ()) -> bool:
    """Whether ``text`` says mostly again what it or ``earlier`` texts said, by the rule above."""
    known = {phrase for other in earlier for phrase in _phrases(other)}
    phrases = _phrases(text)
    again = 0
    for phrase in phrases:
        again += phrase in known
        known.add(phrase)
    return again > REPEATED_SHARE * len(phrases)


def _words(text: str) -> list[str]:
    return ["0" if w.isdigit() else w for w in _WORD.findall(text)]


def _phrases(text: str) -> list[tuple[str, ...]]:
    """All runs of ``MIN_WORDS`` words; a shorter text is one phrase, an empty one has none."""
    words = [w.lower() for w in _words(text)]
    if len(words) < MIN_WORDS:
        return [tuple(words)] if words else []
    return [tuple(words[i : i + MIN_WORDS]) for i in range(len(words) - MIN_WORDS + 1)]

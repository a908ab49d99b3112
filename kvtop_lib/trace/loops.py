"""Does an output end in a loop? Small models often do, and loops make drafts look too good.

The rule, on words (runs of letters or digits, and single punctuation marks; all numbers count as
the same word, so that a numbered list of one sentence is a loop too): an output is *looped* when
its tail is at least ``MIN_REPEATS`` copies of one phrase, in which a phrase of fewer than
``MIN_WORDS`` words must be repeated until it covers as much as ``MIN_REPEATS`` copies of
``MIN_WORDS`` words. A last copy that the token limit cut short counts for the words it has.
"""

from __future__ import annotations

import re

MIN_WORDS = 4
MIN_REPEATS = 3

_WORD = re.compile(r"\d+|[^\W\d]+|[^\w\s]")


def ends_in_loop(text: str) -> bool:
    """Whether ``text`` ends in a loop by the rule of this module.

    The text is also looked at without its last word, which a token limit may have cut in two.
    """
    words = ["0" if w.isdigit() else w for w in _WORD.findall(text)]
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

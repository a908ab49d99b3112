"""The suffix index of one request: its longest earlier match, and what followed there.

The C library does a step in about a microsecond; where it cannot be compiled, Python does the
same in a few more. Both are bounded in memory: a window of the latest tokens, 12 bytes each in C.
"""

import array
import ctypes
import functools
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..kernels import build

log = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("suffix.c")
FLAGS = "-O2 -std=gnu11 -fPIC -shared -fvisibility=hidden"

WINDOW_TOKENS = 1 << 16  # a power of two
MAX_MATCH = 32  # a longer match says no more
CANDIDATES = 16  # earlier places that are compared, the latest first


@functools.cache
def native() -> ctypes.CDLL | None:
    """The compiled library; None (said once in the log) where it cannot be compiled."""
    try:
        cdll = ctypes.CDLL(str(build.compiled(shlex.split(FLAGS), SOURCE, "suffix")))
    except (build.BuildError, OSError) as error:
        log.warning("The n-gram index runs in Python, which is slower: %s", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments, result in (
        ("new", [number] * 5, pointer),
        ("free", [pointer], None),
        ("relinked", [pointer], number),
        ("extend", [pointer, pointer, number], ctypes.c_int),
        ("propose", [pointer, number, pointer], number),
    ):
        function = getattr(cdll, f"kvtop_suffix_{name}")
        function.argtypes, function.restype = arguments, result
    return cdll


class NativeIndex:
    """The index in C; the interface of `PythonIndex`."""

    TOKENS_PER_ITERATION = 1 << 13  # read at most, of all requests: some 0.2 ms

    def __init__(
        self, min_match: int, window: int = WINDOW_TOKENS, expected_tokens: int = 0
    ) -> None:
        self._lib = native()
        new = self._lib.kvtop_suffix_new
        self._at = new(window, min_match, MAX_MATCH, CANDIDATES, min(expected_tokens, window))
        if not self._at:
            raise MemoryError("no memory for an n-gram index")
        self.tokens = 0

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._lib.kvtop_suffix_free(self._at)

    @property
    def relinked(self) -> int:
        """Tokens that were linked anew when more came than were expected."""
        return self._lib.kvtop_suffix_relinked(self._at)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        data = tokens if isinstance(tokens, array.array) else array.array("q", tokens)
        if data.typecode != "q":
            data = array.array("q", data)
        if not self._lib.kvtop_suffix_extend(self._at, data.buffer_info()[0], len(data)):
            raise MemoryError("no memory for an n-gram index")
        self.tokens += len(data)

    def propose(self, depth: int) -> tuple[int, list[int]]:
        """Length of the match, at least `min_match` or 0, and the `depth` tokens after it."""
        out = (ctypes.c_int64 * depth)()
        length = self._lib.kvtop_suffix_propose(self._at, depth, out)
        return length, list(out) if length else []


class PythonIndex:
    """The index without a compiler.

    Parameters
    ----------
    min_match : tokens that must agree at least.
    window : latest tokens that are searched, a power of two.
    expected_tokens : most that the text may come to; more may come, at the cost of a pause (in C).
    """

    TOKENS_PER_ITERATION = 512

    def __init__(
        self, min_match: int, window: int = WINDOW_TOKENS, expected_tokens: int = 0
    ) -> None:
        self._min, self._window = min_match, window
        self._token: list[int] = []
        self._prev: list[int] = []
        self._head: dict[tuple[int, ...], int] = {}  # an m-gram's latest end
        self.tokens = 0

    def _gram(self, end: int) -> tuple[int, ...]:
        places = range(end - self._min + 1, end + 1)
        return tuple(self._token[i % self._window] for i in places)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            end, slot = self.tokens, self.tokens % self._window
            if end < self._window:
                self._token.append(token)
                self._prev.append(-1)
            else:
                leaving = end - self._window + self._min - 1  # the m-gram that loses its start
                gram = self._gram(leaving)
                if self._head.get(gram) == leaving:
                    del self._head[gram]
                self._token[slot] = token
            if end >= self._min - 1:
                gram = self._gram(end)
                self._prev[slot] = self._head.get(gram, -1)
                self._head[gram] = end
            self.tokens += 1

    def propose(self, depth: int) -> tuple[int, list[int]]:
        """Length of the match, at least `min_match` or 0, and the `depth` tokens after it."""
        if self.tokens < self._min + 1:
            return 0, []
        last, oldest = self.tokens - 1, max(self.tokens - self._window, 0)
        best, at, place = 0, -1, self._prev[(self.tokens - 1) % self._window]
        for _ in range(CANDIDATES):
            if place < oldest:
                break
            length = self._common(place, last, oldest)
            if length < self._min:
                break  # its start has left the window
            if length > best:
                best, at = length, place
            if best == MAX_MATCH:
                break
            earlier = self._prev[place % self._window]
            if earlier >= place:
                break
            place = earlier
        out: list[int] = []
        for i in range(depth if best else 0):
            source = at + 1 + i
            inside = source <= last
            out.append(self._token[source % self._window] if inside else out[source - last - 1])
        return best, out

    def _common(self, a: int, b: int, oldest: int) -> int:
        n = 0
        while n < MAX_MATCH and a - n >= oldest:
            if self._token[(a - n) % self._window] != self._token[(b - n) % self._window]:
                break
            n += 1
        return n


def index_class() -> type[NativeIndex] | type[PythonIndex]:
    """The index that runs here."""
    return NativeIndex if native() else PythonIndex

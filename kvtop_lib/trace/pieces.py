"""Pieces of real text whose tokens do not depend on what stands beside them."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from kvtop_lib.terms import KvtopError

PACKAGES = ("altair", "fastapi", "jinja2", "networkx", "pandas", "pydantic", "requests", "rich")
"""Pinned packages, whose own source is the text."""

CORPUS_CHARS = 1_200_000
MAX_FILE_CHARS = 40_000
MAX_PIECE_TOKENS = 12  # a longer piece is a row of signs or a table
MIN_SINGLE = 300  # pieces of one token, without which blocks could not be told apart
ANCHOR = " a"
_CUT = re.compile(r"(?<=\S)(?= [A-Za-z])")
_TEXT = re.compile(r"[\n -~]*\Z")  # printable ASCII


@dataclass(frozen=True)
class PieceBook:
    """A corpus cut into pieces, with their tokens for one tokenizer."""

    stream: tuple[str, ...]  # in the order of the corpus
    tokens: tuple[int, ...]  # of each piece of the stream
    single: tuple[str, ...]  # different pieces of one token, sorted
    sha256: str  # of the corpus

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: tuple[str, ...] | None = None) -> PieceBook:
        """Cut ``texts`` (default: the corpus of the installed packages) for ``tokenizer``.

        A piece is kept when its tokens stay the same behind another piece and before one.

        Raises
        ------
        KvtopError
            Too few pieces keep their tokens, as with a tokenizer that does not break at blanks.
        """
        texts = texts or corpus()
        stream = [p for text in texts for p in _CUT.split(text)[1:-1] if _TEXT.match(p)]
        kinds = sorted(set(stream))
        first, several = _ids(tokenizer, [ANCHOR, ANCHOR * 3])
        last = several[(len(first) + len(several)) // 2 :]
        clean = several == first + last + last and bool(last)
        around = _ids(tokenizer, [ANCHOR + p + ANCHOR for p in kinds]) if clean else []
        n, m = len(first), len(last)
        fits = {
            p: len(ids) - n - m
            for p, ids in zip(kinds, around, strict=False)
            if ids[:n] == first and ids[-m:] == last
        }
        kept = [p for p in stream if 0 < fits.get(p, 0) <= MAX_PIECE_TOKENS]
        single = tuple(p for p in kinds if fits.get(p) == 1)
        if len(single) < MIN_SINGLE:
            raise KvtopError(
                "This tokenizer does not keep words apart at blanks, so no text of an exact number "
                "of tokens can be made for it; give a trace that tells its text."
            )
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        return cls(tuple(kept), tuple(fits[p] for p in kept), single, digest)


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    found: list[list[int]] = []
    for i in range(0, len(texts), 5_000):
        batch = tokenizer.encode_batch(texts[i : i + 5_000], add_special_tokens=False)
        found += [coded.ids for coded in batch]
    return found


@lru_cache(maxsize=1)
def corpus(site: Path | None = None) -> tuple[str, ...]:
    """Texts of the source files of `PACKAGES`, by path, as many as fill `CORPUS_CHARS`.

    Raises
    ------
    KvtopError
        None of the packages is installed.
    """
    site = site or Path(sysconfig.get_paths()["purelib"])
    texts: list[str] = []
    for package in PACKAGES:
        chars = 0
        for file in sorted((site / package).rglob("*.py")):
            if chars >= CORPUS_CHARS // len(PACKAGES):
                break
            text = file.read_text(encoding="utf-8", errors="replace")
            if 600 <= len(text) <= MAX_FILE_CHARS:
                texts.append(text)
                chars += len(text)
    if not texts:
        raise KvtopError(f"{site} holds no source to make text of; run `make install` first.")
    return tuple(texts)

"""The text that an agent's tools return: files of this repository, and excerpts of them."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvtop_lib.paths import repo_root
from kvtop_lib.terms import KvtopError

TEXT_SUFFIXES = (".c", ".css", ".h", ".j2", ".md", ".py", ".toml", ".yaml")
TEXT_NAMES = ("Makefile",)
NOT_OURS = ("LICENSE", "requirements/", "params/published/", "outputs/", "kvtop_lib/embedded/")
"""Licence text, package lists, cited figures, results, and this trace itself."""

Corpus = list[tuple[str, str]]
"""Files as (path, text)."""


def repository_corpus(root: Path | None = None) -> Corpus:
    """All text files that git tracks under ``root`` and that are our own text, by path.

    Raises
    ------
    KvtopError
        ``root`` is no git checkout.
    """
    root = root or repo_root()
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True, text=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        raise KvtopError(
            f"The files of {root} cannot be listed with git; plan agent sessions in a checkout."
        ) from None
    corpus = []
    for name in sorted(listed):
        path = PurePosixPath(name)
        ours = name and not name.startswith(NOT_OURS)
        if ours and (path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES):
            if (root / name).is_file():
                corpus.append((name, (root / name).read_text(encoding="utf-8")))
    return corpus


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines of one file."""

    path: str
    first_line: int  # 1-based
    text: str

    @property
    def last_line(self) -> int:
        """The last line that is in the excerpt."""
        return self.first_line + self.text.count("\n")


def draw_excerpt(files: Mapping[str, str], chars: int, rng: random.Random) -> Excerpt:
    """Draw consecutive lines of at most ``chars`` characters from a random place in ``files``.

    Every line is equally likely to be drawn; the excerpt starts at the paragraph or block that
    holds it (after a blank line) when that is near. Only a line longer than ``chars`` is cut.
    """
    paths = list(files)
    lines_of = [files[path].split("\n") for path in paths]
    k = rng.choices(range(len(paths)), weights=[len(lines) for lines in lines_of])[0]
    lines = lines_of[k]
    start = _block_start(lines, rng.randrange(len(lines)))
    taken: list[str] = []
    for line in lines[start:]:
        line = line.rstrip()[:chars]
        if taken and sum(map(len, taken)) + len(taken) + len(line) > chars:
            break
        taken.append(line)
    return Excerpt(paths[k], start + 1, "\n".join(taken).rstrip())


def _block_start(lines: list[str], at: int, reach: int = 12) -> int:
    """The nearest line at or before ``at`` that follows a blank one, within ``reach`` lines."""
    for start in range(at, max(-1, at - reach), -1):
        if lines[start].strip() and (start == 0 or not lines[start - 1].strip()):
            return start
    return at

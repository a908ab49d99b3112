"""The text that an agent's tools return: files of this repository, and excerpts of them."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvtop_lib.paths import repo_root
from kvtop_lib.terms import KvtopError

TEXT_SUFFIXES = (".c", ".h", ".md", ".py", ".toml", ".yaml")
TEXT_NAMES = ("Makefile",)
NOT_OURS = ("LICENSE", "requirements/", "params/published/", "outputs/", "kvtop_lib/embedded/")
"""Licence text, package lists, cited figures, results, and this trace itself."""

PROSE_SUFFIXES = (".md", ".yaml")
PROSE_WEIGHT = 4  # a repository has more lines of code than of prose; an agent reads both

Corpus = list[tuple[str, str]]
"""Files as (path, text)."""


def repository_corpus(root: Path | None = None, commit: str = "HEAD") -> Corpus:
    """All text files of a commit of the checkout at ``root`` that are our own text, by path.

    Files are read from the commit and not from the disk, so that the same commit gives the same
    corpus while people work.

    Raises
    ------
    KvtopError
        ``root`` is no git checkout or has no such commit.
    """
    root = root or repo_root()
    names = _git(root, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    ours = [name for name in names if name and not name.startswith(NOT_OURS)]
    texts = [n for n in ours if PurePosixPath(n).suffix in TEXT_SUFFIXES or n in TEXT_NAMES]
    return [(name, _git(root, "show", f"{commit}:{name}")) for name in sorted(texts)]


def commit_id(commit: str = "HEAD", root: Path | None = None) -> str:
    """The full id of a commit; errors as in ``repository_corpus``."""
    return _git(root or repo_root(), "rev-parse", "--verify", f"{commit}^{{commit}}").strip()


def _git(root: Path, *args: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace")
        raise KvtopError(
            f"git cannot read the files of {root} ({' '.join(said.split())}); plan agent sessions "
            "in a checkout and name one of its commits."
        ) from None
    return done.stdout.decode("utf-8")


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

    Every line is equally likely to be drawn, one of prose ``PROSE_WEIGHT`` times as likely; the
    excerpt starts at the paragraph or block that holds it (after a blank line) when that is near.
    Only a line longer than ``chars`` is cut.
    """
    paths = list(files)
    lines_of = [files[path].split("\n") for path in paths]
    weights = [
        len(lines) * (PROSE_WEIGHT if path.endswith(PROSE_SUFFIXES) else 1)
        for path, lines in zip(paths, lines_of, strict=True)
    ]
    k = rng.choices(range(len(paths)), weights)[0]
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

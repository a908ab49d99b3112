"""Has anything been touched since a run's keys were written? ``python -m kvtop_lib.unchanged RUN``.

Working out the keys reads and parses everything that they stand for. Where no file of that has even
been touched, which its change time and size tell, they need not be worked out again: a call that
finds nothing to do then costs the start of an interpreter. Only the standard library is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from kvtop_lib import paths

FILE = "seen.json"


def seen(roots: Iterable[Path]) -> dict:
    """Every file below some roots with change time and size, and what else the keys depend on."""
    found: dict[str, list[int]] = {}
    for root in map(Path, roots):
        found[str(root)] = [root.is_dir()]
        files = [root] if root.is_file() else _below(root)
        for file in files:
            state = os.stat(file)
            found[str(file)] = [state.st_ctime_ns, state.st_size]
    places = [str(f()) for f in (paths.repo_root, paths.outputs_dir, paths.cache_dir)]
    return {"python": sys.version, "places": places, "files": found}


def _below(folder: Path) -> list[str]:
    files = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name != "__pycache__"]
        files += [os.path.join(place, name) for name in names]
    return files


def remember(run: Path, read: list[Path], written: list[Path], before: dict) -> None:
    """Keep the state of what keys were worked out from, and of what was written for them.

    Parameters
    ----------
    read : files and folders that they depend on.
    written : files and folders of the run that must be as they are now.
    before : `seen` of ``read`` before they were worked out: what has changed since then counts.
    """
    before["files"] |= seen(written)["files"]
    told = json.dumps({"roots": [str(r) for r in (*read, *written)], **before})
    part = run / f".{FILE}.{os.getpid()}.part"
    part.write_text(told, encoding="utf-8")
    part.replace(run / FILE)


def unchanged(run: Path) -> bool:
    """Whether all is as it was when the run's keys were written."""
    try:
        known = json.loads((run / FILE).read_text(encoding="utf-8"))
        return seen(known.pop("roots")) == known
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


if __name__ == "__main__":
    sys.exit(not unchanged(Path(sys.argv[1])))

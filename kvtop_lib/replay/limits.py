"""The system's limit of open files, raised for many streams."""

from __future__ import annotations

import resource

from kvtop_lib.terms import KvtopError

SPARE = 128
"""Files that a process needs beside its streams."""

PLENTY = 16384
"""Raised to at least this where the system allows it: an open load cannot say what it needs."""


def raise_open_files(streams: int) -> int:
    """Raise this process's soft limit to what ``streams`` connections need; the limit then.

    Raises
    ------
    KvtopError
        When the hard limit is lower.
    """
    need = streams + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= max(need, PLENTY):
        return soft
    if hard != resource.RLIM_INFINITY and hard < need:
        raise KvtopError(
            f"{streams} streams need {need} open files but this system allows {hard}; raise the "
            "hard limit (ulimit -Hn) or ask for fewer streams"
        )
    try:
        aim = max(need, PLENTY if hard == resource.RLIM_INFINITY else min(PLENTY, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
    except (OSError, ValueError) as e:
        if soft >= need:
            return soft
        raise KvtopError(
            f"{streams} streams need {need} open files and the limit of {soft} cannot be raised "
            f"({e}); raise it with ulimit -n"
        ) from e
    return aim

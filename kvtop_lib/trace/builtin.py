"""Traces by name: the ones that come with the package, and files."""

from __future__ import annotations

from pathlib import Path

from kvtop_lib.paths import embedded_dir
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Trace
from kvtop_lib.trace.sessions_jsonl import read_sessions

BUILTIN = {"builtin:agent": "trace.jsonl", "builtin:agent-tiny": "tiny.jsonl"}
"""Name -> file in the package's ``embedded/agent``."""


def trace_path(name: str | Path) -> Path:
    """The file of a trace: of a built-in one by its name, else the path itself.

    Raises
    ------
    KvtopError
        The name starts with ``builtin:`` and there is no such trace.
    """
    if not str(name).startswith("builtin:"):
        return Path(name)
    if name not in BUILTIN:
        known = ", ".join(BUILTIN)
        raise KvtopError(f"There is no built-in trace {name!r}; there are {known}, or give a file.")
    return embedded_dir() / "agent" / BUILTIN[str(name)]


def load_trace(name: str | Path) -> Trace:
    """Read a built-in trace or a session JSONL file; errors as in ``read_sessions``."""
    return read_sessions(trace_path(name))

"""Traces by name: the ones that come with the package, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop_lib.paths import embedded_dir
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.fit import cut_to_context, scaled
from kvtop_lib.trace.model import Trace
from kvtop_lib.trace.readers.formats import read_trace

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


def load_trace(
    name: str | Path,
    *,
    max_context: int | None = None,
    scale_tokens: float | None = None,
    skip_bad: bool = False,
    tokenizer: Any = None,
) -> Trace:
    """Read a trace: a built-in one, or a file or folder of any format (docs/traces.md).

    Parameters
    ----------
    name
        ``builtin:...`` or a path.
    max_context
        Keep the leading turns of each session whose prompt and answer fit into so many tokens.
    scale_tokens
        Shrink blocks, messages and answers to this share of their length, before the cut.
    skip_bad
        Count bad lines instead of stopping at the first.
    tokenizer
        The served model's (see ``Trace.with_text``): counts tokens of recorded text, and makes
        text where the trace tells none.

    Raises
    ------
    KvtopError
        The file is missing, of no known format, or holds no session; a line is bad; nothing fits.
    """
    trace = read_trace(trace_path(name), skip_bad)
    if not trace.sessions:
        said = trace.recorded_with
        lost = {**said.get("left_out", {}), "bad lines": said.get("bad_lines_skipped", 0)}
        told = ", ".join(f"{n} {what}" for what, n in lost.items() if n)
        but = f" but {told}" if told else ""
        raise KvtopError(f"The trace {name} holds no sessions{but}; give one with at least one.")
    if scale_tokens is not None:
        trace = scaled(trace, scale_tokens)
    if tokenizer is not None:
        trace = trace.with_text(tokenizer)
    return trace if max_context is None else cut_to_context(trace, max_context)

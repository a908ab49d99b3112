"""Traces: sessions of turns, read, planned and recorded."""

from kvtop_lib.trace.builtin import load_trace, trace_path
from kvtop_lib.trace.model import Session, Trace, Turn
from kvtop_lib.trace.sessions_jsonl import read_sessions, write_sessions

__all__ = [
    "Session",
    "Trace",
    "Turn",
    "load_trace",
    "read_sessions",
    "trace_path",
    "write_sessions",
]

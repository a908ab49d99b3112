"""Replay of a trace against a server, recorded with one clock and no guesses.

`run_point` plays one point and writes raw records; `SessionPool` decides which sessions a
point may play; `flush`, the engine's, empties the server's caches before it. Formulas live in
`kvtop_lib.metrics`.
"""

from kvtop_lib.engine.client import flush
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.point import run_point
from kvtop_lib.replay.pool import PoolExhausted, SessionPool, SessionSlice

__all__ = ["Plan", "PoolExhausted", "SessionPool", "SessionSlice", "flush", "run_point"]

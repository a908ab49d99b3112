"""Sessions and points against the scripted server, for the replay tests."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from scripted_server import Play, ScriptedServer

from kvtop_lib.replay import Plan, SessionPool, run_point
from kvtop_lib.store import read_json
from kvtop_lib.trace.model import Session, Turn

PLAN = Plan(burn_in_s=0.0, warmup_s=0.0, window_s=0.8, drain_s=2.0, timeout_s=5.0, stagger_s=0.0)


def sessions(n: int, turns: int = 1, output: str = Play().whole_text) -> list[Session]:
    """Sessions whose prompts are all different."""
    return [
        Session(
            f"s{i:04}",
            "task",
            tuple(
                Turn(({"role": "user", "content": f"ask {i}-{k}"},), output, 8, "stop", 10)
                for k in range(turns)
            ),
        )
        for i in range(n)
    ]


def play_point(
    server: ScriptedServer | str, folder: Path, c: int = 1, plan: Plan = PLAN, n: int = 400, **kw
) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    """Run a point; its requests, chunks and recording."""
    pool = SessionPool(kw.pop("sessions", None) or sessions(n), [c], 1, until_s=plan.w1_s)
    url = server if isinstance(server, str) else server.url
    labels = {"run": "r", "arm": "a", "block": 1, "workload": "w", "attempt": 1, "key": "k"}
    run_point(url, "m", pool.slice(c), c, plan, 1, folder, labels=labels, progress="off", **kw)
    tables = (pd.read_parquet(folder / f"{t}.parquet") for t in ("requests", "chunks"))
    return (*tables, read_json(folder / "recording.json"))

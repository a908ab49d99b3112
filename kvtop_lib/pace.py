"""How long a server's start takes, by what the run has seen of it."""

from __future__ import annotations

import statistics
from pathlib import Path

from kvtop_lib.plan import LAUNCH_S
from kvtop_lib.store import read_json


def start_s(run: Path, arm: str) -> float:
    """Expected time until a server of `arm` answers, seconds.

    The median over the starts that the run has recorded of this arm, else of all arms; before
    the first one the plan's `LAUNCH_S`.
    """
    records = [
        (file.relative_to(run).parts[0], read_json(file).get("startup_s"))
        for file in sorted(Path(run).glob("*/*/**/deployment.json"))
    ]
    known = [(a, s) for a, s in records if a != "superseded" and isinstance(s, int | float)]
    own = [s for a, s in known if a == arm]
    return statistics.median(own or [s for _, s in known] or [LAUNCH_S])

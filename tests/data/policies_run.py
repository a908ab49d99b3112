"""A run of width policies with known truth: every number follows from the tables below by hand.

Nothing of the library is used. ``write_run(folder)`` writes what the notebook of the policies
reads: manifest, results, and recorded iterations of the arms that have any here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

LOADS = (1, 8, 32)
BLOCKS = (1, 2)
DELTA = 0.01  # the controller's launches: log rates this much above and below its mean

MTP = {"method": "mtp"}
THREE = MTP | {"width": 4, "widths": [1, 2, 4]}
DRAFTS = {
    "baseline": {"method": "none", "width": 1},
    "mtp_w2": MTP | {"width": 2},
    "mtp_w4": MTP | {"width": 4},
    "mtp_controller": THREE | {"policy": "goodput"},
}
TITLES = {
    "baseline": "Baseline",
    "mtp_w2": "MTP, width 2",
    "mtp_w4": "MTP, width 4",
    "mtp_controller": "Controller",
}
TOK_S = {
    "baseline": dict(zip(LOADS, (100.0, 400.0, 800.0), strict=True)),
    "mtp_w2": dict(zip(LOADS, (120.0, 380.0, 640.0), strict=True)),
    "mtp_w4": dict(zip(LOADS, (110.0, 300.0, 480.0), strict=True)),
    # against the best: 121/120, 396/400, 790/800
    "mtp_controller": dict(zip(LOADS, (121.0, 396.0, 790.0), strict=True)),
}

ITERATIONS = {  # at 8 lanes: (batch, width, seconds, tokens of all requests)
    "baseline": [(8, 1, 0.020, 8)] * 5,
    "mtp_controller": [*[(8, 1, 0.025, 8)] * 3, (8, 2, 0.040, 12), (4, 2, 0.030, 6)],
}
W0_S, WINDOW_S = 100.0, 14.0
PARTS = ("target", "draft", "verify", "draft_extend")


def lines(tok_s=None, blocks=BLOCKS, delta=DELTA, failed=()) -> list[dict]:
    """Lines of results.jsonl; ``failed`` are (arm, load) that failed in every block."""
    rows = []
    for arm, rates in (tok_s or TOK_S).items():
        for c, rate in rates.items():
            for block in blocks:
                launch = delta * (1 if block == 1 else -1) if arm == "mtp_controller" else 0.0
                where = {"arm": arm, "block": block, "workload": "agent", "load": f"c{c}", "c": c}
                found = {"status": "ok", "reason": "", "output_tok_s": rate * math.exp(launch)}
                if (arm, c) in failed:
                    found = {"status": "failed", "reason": "the server died"}
                rows.append({"schema": 1, "attempt": 1, **where, **found})
    return rows


def points(*args, **more) -> pd.DataFrame:
    """The same as a table, as a run gives it."""
    rows = lines(*args, **more)
    return pd.DataFrame(rows).assign(line=range(1, len(rows) + 1))


def manifest(drafts=None) -> dict:
    """The part of a manifest that is read."""
    arms = {
        a: {"id": a, "title": TITLES.get(a, a), "draft": d} for a, d in (drafts or DRAFTS).items()
    }
    return {"schema": 1, "profile": {"loads": [*LOADS, {"rate": 0.5}]}, "arms": arms}


def iterations(arm: str) -> list[dict]:
    """Recorded iterations of a point, a prefill before them and one behind the window."""
    rows, t_s = [("prefill", 8, None, 0.5, 0)], W0_S
    rows += [("decode" if arm == "baseline" else "verify", *x) for x in ITERATIONS[arm]]
    found = []
    for mode, bs, width, dur_s, tokens in rows:
        found.append(
            {"t_s": t_s, "dur_s": dur_s, "mode": mode, "bs": bs, "width": width,
             "committed_tokens": tokens}
        )  # fmt: skip
        t_s += dur_s
    found.append({**found[-1], "t_s": W0_S + WINDOW_S, "width": 4})
    nothing = {f"{p}{end}": math.nan for p in PARTS for end in ("_s", "_device_s")}
    return [row | nothing for row in found]


def write_run(folder: Path, **more) -> Path:
    """Write the run folder (``more`` as for `lines`)."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest()))
    rows = lines(**more)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        point = folder / row["arm"] / f"b{row['block']}" / "agent" / row["load"]
        point.mkdir(parents=True)
        window = {"w0_s": W0_S, "w1_s": W0_S + WINDOW_S}
        (point / "recording.json").write_text(json.dumps({"window": window}))
        if row["c"] == 8 and row["arm"] in ITERATIONS:
            table = pa.Table.from_pylist(iterations(row["arm"]))
            meta = {"kvtop": json.dumps({"complete": True})}
            pq.write_table(table.replace_schema_metadata(meta), point / "iterations.parquet")
    return folder

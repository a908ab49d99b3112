"""Iteration time by arm and load, from what clients saw and servers counted per request.

Iteration time of a request = its decode time / its verify steps, where a step without drafting
is a token after the first: both are TPOT times delivered tokens per step. It contains
everything that happens between two steps of a request, prefills of others included.
"""

from __future__ import annotations

import pandas as pd

from kvtop_lib.metrics import Recording, percentile
from kvtop_lib.stats import first_axis
from kvtop_lib.store import Run

GROUP = ["arm", "workload", "c"]


def by_request(run: Run) -> pd.DataFrame:
    """Iteration time of every request that was sent in the window and ended ``ok``.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``block``, ``line``, ``session``, ``turn``, ``iteration_s``,
        ``tpot_s``, ``tokens_per_step`` (1 without drafting), ``steps``; requests whose tokens
        came all at once have no iteration time and are left out.
    """
    frames = []
    for point in first_axis(run.results()).query("status == 'ok'").to_dict("records"):
        rows = Recording.read(run.folder(point)).window.dropna(subset=["iteration_s"])
        frames.append(
            pd.DataFrame(
                {
                    **{k: point[k] for k in (*GROUP, "block", "line")},
                    **{k: rows[k] for k in ("session", "turn", "iteration_s", "tpot_s")},
                    "tokens_per_step": rows["iteration_s"] / rows["tpot_s"],
                    "steps": (rows["n_last"] - 1) * rows["tpot_s"] / rows["iteration_s"],
                }
            )
        )
    columns = [*GROUP, "block", "line", "session", "turn", "iteration_s", "tpot_s"]
    empty = pd.DataFrame(columns=[*columns, "tokens_per_step", "steps"])
    return pd.concat(frames, ignore_index=True) if frames else empty


def by_load(run: Run, baseline: str = "baseline") -> pd.DataFrame:
    """Iteration time and tokens per step by arm and load, and both relative to the baseline.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``requests``, ``iteration_s`` (median over requests),
        ``iteration_p10_s``, ``iteration_p90_s``, ``tokens_per_step`` (pooled: tokens after the
        first / steps), ``cost`` and ``gain`` (iteration time and tokens per step over the
        baseline's at the same load, NaN without it; drafting pays per stream when gain > cost),
        ``lines`` (list).
    """
    rows = []
    for key, g in by_request(run).groupby(GROUP, sort=True):
        quantiles = {n: percentile(g["iteration_s"], q) for n, q in _QUANTILES.items()}
        rows.append(
            {
                **dict(zip(GROUP, key, strict=True)),
                "requests": len(g),
                **quantiles,
                "tokens_per_step": (g["tokens_per_step"] * g["steps"]).sum() / g["steps"].sum(),
                "lines": sorted(g["line"].unique().tolist()),
            }
        )
    columns = [*GROUP, "requests", *_QUANTILES, "tokens_per_step", "lines"]
    table = pd.DataFrame(rows, columns=columns)
    base = table.loc[table["arm"] == baseline].set_index(["workload", "c"])
    at = pd.MultiIndex.from_frame(table[["workload", "c"]])
    table["cost"] = table["iteration_s"].to_numpy() / base["iteration_s"].reindex(at).to_numpy()
    steps = base["tokens_per_step"].reindex(at).to_numpy()
    table["gain"] = table["tokens_per_step"].to_numpy() / steps
    return table


_QUANTILES = {"iteration_s": 50, "iteration_p10_s": 10, "iteration_p90_s": 90}

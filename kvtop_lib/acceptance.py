"""Acceptance of drafts by arm and load, from the counters of single requests.

Requests that were sent in the window and ended ``ok`` enter, pooled over the blocks of an arm;
the server's own gauges are lifetime averages and are not used.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvtop_lib.metrics.drafts import acceptance, by_position, pooled_hist
from kvtop_lib.store import Run

GROUP = ["arm", "workload", "c"]


def drafting_requests(run: Run) -> pd.DataFrame:
    """Window requests with draft counters, of all points that are ``ok``.

    Returns
    -------
    DataFrame
        Columns of ``requests.parquet`` plus ``arm``, ``workload``, ``c``, ``block``, ``line``.
    """
    frames = []
    for point in run.results().query("status == 'ok'").to_dict("records"):
        rows = run.requests(point)
        rows = rows[(rows["phase"] == "window") & (rows["status"] == "ok")]
        rows = rows[rows["accepted_hist"].notna()]
        if len(rows):
            frames.append(rows.assign(**{k: point[k] for k in (*GROUP, "block", "line")}))
    if not frames:
        return pd.DataFrame(columns=[*GROUP, "block", "line", "accepted_hist", "verify_steps"])
    return pd.concat(frames, ignore_index=True)


def by_load(run: Run) -> pd.DataFrame:
    """Acceptance per arm and load.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``accept_len`` (1 + accepted / verify steps),
        ``accept_rate``, ``tokens_per_step``, ``verify_steps``, ``requests``, ``blocks`` and
        ``lines`` (list). Arms without drafting have no row.
    """
    rows = []
    for key, group in drafting_requests(run).groupby(GROUP, sort=True):
        found = acceptance(group)
        found.pop("accept_by_position")
        rows.append(
            {
                **dict(zip(GROUP, key, strict=True)),
                **found,
                "requests": len(group),
                "blocks": group["block"].nunique(),
                "lines": sorted(group["line"].unique().tolist()),
            }
        )
    columns = "accept_len accept_rate tokens_per_step verify_steps requests blocks lines".split()
    return pd.DataFrame(rows, columns=[*GROUP, *columns])


def by_draft_position(run: Run) -> pd.DataFrame:
    """Acceptance of draft i given that draft i - 1 was accepted, per arm and load.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``position`` (from 1), ``accepted`` (probability),
        ``steps`` (verify steps that got as far as this draft).
    """
    rows = []
    for key, group in drafting_requests(run).groupby(GROUP, sort=True):
        hist = pooled_hist(group["accepted_hist"])
        reached = hist[::-1].cumsum()[::-1]  # [i]: steps that accepted at least i drafts
        for i, p in enumerate(by_position(hist), 1):
            at = dict(zip(GROUP, key, strict=True))
            rows.append({**at, "position": i, "accepted": p, "steps": int(reached[i - 1])})
    return pd.DataFrame(rows, columns=[*GROUP, "position", "accepted", "steps"])


def by_request(run: Run) -> pd.DataFrame:
    """Acceptance length of every request, for its spread.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``block``, ``session``, ``turn``, ``verify_steps``,
        ``accept_len``.
    """
    rows = drafting_requests(run)
    accepted = [int(np.arange(len(h)) @ np.asarray(h)) for h in rows["accepted_hist"]]
    rows = rows.assign(accept_len=1 + np.array(accepted, dtype=float) / rows["verify_steps"])
    keep = [*GROUP, "block", "session", "turn", "verify_steps", "accept_len"]
    return rows.reindex(columns=keep)

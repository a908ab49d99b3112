"""Acceptance of drafts by arm and load, from the counters of single requests.

Requests that were sent in the window and ended ``ok`` enter, pooled over the blocks of an arm;
the server's own gauges are lifetime averages and are not used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from kvtop_lib import paths
from kvtop_lib.metrics.drafts import (
    acceptance,
    by_position,
    own_widths,
    pooled_hist,
    pooled_tries,
    request_steps,
)
from kvtop_lib.metrics.recorded import read_iterations
from kvtop_lib.stats import first_axis
from kvtop_lib.store import Run, read_json

GROUP = ["arm", "workload", "c"]


def drafting_requests(run: Run) -> pd.DataFrame:
    """Window requests with draft counters, of all points that are ``ok``.

    Returns
    -------
    DataFrame
        Columns of ``requests.parquet`` plus ``arm``, ``workload``, ``c``, ``block``, ``line``;
        what was proposed as in `kvtop_lib.metrics.drafts.own_widths`.
    """
    frames = []
    for point in first_axis(run.results()).query("status == 'ok'").to_dict("records"):
        rows = run.requests(point)
        rows = rows[(rows["phase"] == "window") & (rows["status"] == "ok")]
        rows = rows[rows["accepted_hist"].notna()]
        if len(rows):
            folder = run.folder(point)
            widths = read_json(folder / "recording.json").get("widths") or ()
            rows = own_widths(rows, read_iterations(folder), widths)
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
        ``steps`` (verify steps that got as far as this draft). Nothing of an arm with several
        widths whose steps were not recorded.
    """
    rows = []
    for key, group in drafting_requests(run).groupby(GROUP, sort=True):
        if group["proposed_drafts"].isna().any():
            continue
        hist, tried = pooled_hist(group["accepted_hist"]), pooled_tries(group)
        # [i]: steps that accepted at least i drafts, and proposed another
        reached = hist[::-1].cumsum()[::-1] if tried is None else tried
        for i, p in enumerate(by_position(hist, tried), 1):
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


def by_turn(run: Run) -> pd.DataFrame:
    """Acceptance per arm and turn of the session (0 is its first), pooled over loads.

    Returns
    -------
    DataFrame
        ``arm``, ``turn``, ``accept_len``, ``accept_rate``, ``verify_steps``, ``requests``.
    """
    return _pooled(drafting_requests(run), "turn")


def by_context(run: Run, edges: tuple[int, ...] = (0, 128, 256, 512, 1024, 2048)) -> pd.DataFrame:
    """Acceptance per arm and length of the prompt, pooled over loads.

    Returns
    -------
    DataFrame
        ``arm``, ``context`` (lower edge of the bin of prompt tokens; the last bin is open),
        ``accept_len``, ``accept_rate``, ``verify_steps``, ``requests``.
    """
    rows = drafting_requests(run)
    if "prompt_tokens" not in rows:
        return _pooled(rows.assign(context=None), "context")
    bins = np.searchsorted(edges, rows["prompt_tokens"].astype(float), side="right") - 1
    return _pooled(rows.assign(context=np.asarray(edges)[bins]), "context")


def _pooled(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    found = []
    groups = rows.groupby(["arm", column], sort=True) if len(rows) else ()
    for (arm, value), group in groups:
        pooled = acceptance(group)
        keys = ("accept_len", "accept_rate", "verify_steps")
        found.append(
            {"arm": arm, column: value, **{k: pooled[k] for k in keys}, "requests": len(group)}
        )
    names = ["arm", column, "accept_len", "accept_rate", "verify_steps", "requests"]
    return pd.DataFrame(found, columns=names)


def by_source(recorded: pd.DataFrame) -> pd.DataFrame:
    """Acceptance by who drafted, from recorded iterations.

    Parameters
    ----------
    recorded
        `kvtop_lib.iterations.recorded`.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``source`` (mtp, ngram, none), ``steps`` (verify steps of requests),
        ``share`` (of the arm's steps at this load), ``accept_len`` (1 + accepted / steps).
    """
    steps = request_steps(recorded, ["arm", "c", "source", "accepted"])
    return _shares(steps, "source")


def by_width(recorded: pd.DataFrame) -> pd.DataFrame:
    """Share of verify steps of requests at each width, from recorded iterations.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``width`` (tokens verified), ``steps``, ``share``, ``accept_len``.
    """
    steps = request_steps(recorded, ["arm", "c", "widths", "accepted"])
    return _shares(steps.rename(columns={"widths": "width"}), "width")


def _shares(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    if steps.empty:
        return pd.DataFrame(columns=["arm", "c", column, "steps", "share", "accept_len"])
    by = steps.groupby(["arm", "c", column])["accepted"].agg(["size", "mean"]).reset_index()
    by = by.rename(columns={"size": "steps"}).assign(accept_len=lambda d: 1 + d["mean"])
    by["share"] = by["steps"] / by.groupby(["arm", "c"])["steps"].transform("sum")
    return by[["arm", "c", column, "steps", "share", "accept_len"]]


def golden(file: Path | None = None) -> pd.DataFrame:
    """Published acceptance lengths of public models with MTP layers, as reference marks.

    Returns
    -------
    DataFrame
        ``model``, ``thinking``, ``drafts`` (proposed per step), ``width`` (drafts + 1),
        ``accept_len``, ``temperature``, ``dataset``, ``source``.
    """
    table = pd.read_csv(file or paths.params_dir() / "published" / "golden_al.csv")
    return table.assign(width=table["drafts"] + 1)

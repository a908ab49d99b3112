"""Iterations as the server's recorder timed them: their parts, their tokens, their course."""

from __future__ import annotations

import pandas as pd

from kvtop_lib.iterations.clients import GROUP
from kvtop_lib.metrics.recorded import read_iterations
from kvtop_lib.stats import first_axis
from kvtop_lib.store import Run, read_json

PART_GROUPS = {
    "draft": ("draft",),
    "n-gram look-up": ("ngram",),
    "verify": ("verify",),
    "forward": ("target",),
    "draft-extend": ("draft_extend",),
    "schedule": ("receive", "schedule"),
    "launch": ("launch", "worker"),
    "post-process": ("process",),
    "recorder": ("record",),
}
"""Parts of an iteration as drawn -> columns (without ``_s``) of ``iterations.parquet``."""

STEPS = ("decode", "verify")
"""Modes of the iterations that extend every request of their batch."""


def recorded(run: Run) -> pd.DataFrame:
    """Recorded iterations that began inside the windows of points that are ``ok``.

    Returns
    -------
    DataFrame
        Columns of ``iterations.parquet`` plus ``arm``, ``workload``, ``c``, ``block``, ``line``,
        ``at_s`` (start, from the window's start) and ``kv_tokens`` (capacity). A device's times
        stand in place of the host's where there are any. Empty without a recorder.
    """
    frames = []
    for point in first_axis(run.results()).query("status == 'ok'").to_dict("records"):
        folder = run.folder(point)
        if (rows := read_iterations(folder)) is None:
            continue
        window = read_json(folder / "recording.json")["window"]
        inside = rows["t_s"].between(window["w0_s"], window["w1_s"], inclusive="left")
        rows = rows[inside].assign(**{k: point[k] for k in (*GROUP, "block", "line")})
        rows["at_s"] = rows["t_s"] - window["w0_s"]
        rows["kv_tokens"] = rows.attrs.get("recorder", {}).get("kv_tokens")
        for part in ("target", "draft", "verify", "draft_extend"):
            rows[f"{part}_s"] = rows[f"{part}_device_s"].fillna(rows[f"{part}_s"])
        frames.append(rows)
    if not frames:
        return pd.DataFrame(columns=[*GROUP, "block", "line", "at_s", "kv_tokens", "mode"])
    return pd.concat(frames, ignore_index=True)


def split(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean time of each part by arm, width and batch size, of decode and verify iterations.

    Parameters
    ----------
    rows
        `recorded`.

    Returns
    -------
    DataFrame
        ``arm``, ``width``, ``bs``, ``part`` (`PART_GROUPS`, and "unmarked"), ``seconds`` (mean
        over the iterations, 0 where a part did not run), ``iterations``.
    """
    columns = ["arm", "width", "bs", "part", "seconds", "iterations"]
    steps = rows[rows["mode"].isin(STEPS)]
    if steps.empty:
        return pd.DataFrame(columns=columns)
    times = {g: steps[[f"{p}_s" for p in ps]].fillna(0).sum(axis=1) for g, ps in _groups()}
    times["unmarked"] = steps["unaccounted_s"]
    by = [steps[k] for k in columns[:3]]
    mean = pd.DataFrame(times).groupby(by).mean().rename_axis(columns="part").stack()
    count = steps.groupby(columns[:3]).size().rename("iterations")
    return mean.rename("seconds").reset_index().merge(count.reset_index(), on=columns[:3])[columns]


def _groups() -> list[tuple[str, tuple[str, ...]]]:
    return list(PART_GROUPS.items())


def work(rows: pd.DataFrame) -> pd.DataFrame:
    """Tokens of an iteration beside its time, by arm and load, of decode and verify iterations.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, ``tokens`` (committed per iteration, all requests),
        ``per_request`` (the same per request), ``iteration_s`` (mean), ``tok_s`` (tokens over
        time), ``bs`` (mean), ``iterations``, ``lines``.
    """
    found = []
    for key, g in rows[rows["mode"].isin(STEPS)].groupby(GROUP, sort=True):
        tokens, seconds = g["committed_tokens"].sum(), g["dur_s"].sum()
        found.append(
            {
                **dict(zip(GROUP, key, strict=True)),
                "tokens": tokens / len(g),
                "per_request": tokens / g["bs"].sum(),
                "iteration_s": seconds / len(g),
                "tok_s": tokens / seconds,
                "bs": g["bs"].mean(),
                "iterations": len(g),
                "lines": sorted(g["line"].unique().tolist()),
            }
        )
    names = "tokens per_request iteration_s tok_s bs iterations lines".split()
    return pd.DataFrame(found, columns=[*GROUP, *names])


def over_time(rows: pd.DataFrame, bin_s: float = 0.5) -> pd.DataFrame:
    """Running and queued requests and KV use over the window, means by duration in bins.

    Returns
    -------
    DataFrame
        ``arm``, ``c``, ``at_s`` (start of the bin, from the window's start), ``running``,
        ``queued``, ``kv_use`` (share of the pool that requests hold).
    """
    names = ["running", "queued", "kv_use"]
    if rows.empty:
        return pd.DataFrame(columns=["arm", "c", "at_s", *names])
    d = rows.assign(kv_use=rows["kv_used"] / rows["kv_tokens"], queued=rows["queued"].fillna(0))
    d["at_s"] = (d["at_s"] // bin_s) * bin_s
    d[names] = d[names].multiply(d["dur_s"], axis=0)
    by = d.groupby(["arm", "c", "at_s"])[[*names, "dur_s"]].sum()
    return by[names].div(by["dur_s"], axis=0).reset_index()


def timeline(
    rows: pd.DataFrame, arm: str = "", c: int = 0, from_s: float = 0, for_s: float = 2
) -> pd.DataFrame:
    """Parts of a few seconds of iterations, in the order in which an iteration runs them.

    By default of the last arm at its highest load. The recorder keeps the time of each part, not
    its place: pauses between two parts stand at the end of their iteration.

    Returns
    -------
    DataFrame
        ``part`` (`PART_GROUPS`), ``start_s``, ``end_s`` (from the window's start), ``mode``,
        ``bs``, ``i``; the first block of the point only.
    """
    mine = rows[rows["arm"] == (arm or rows["arm"].iloc[-1])] if len(rows) else rows
    mine = mine[mine["c"] == (c or mine["c"].max())]
    mine = mine[(mine["line"] == mine["line"].min()) & mine["at_s"].between(from_s, from_s + for_s)]
    found = []
    for row in mine.to_dict("records"):
        at = row["at_s"]
        for group in ORDER:
            times = [row[f"{p}_s"] for p in PART_GROUPS[group]]
            if (seconds := sum(t for t in times if t == t)) > 0:
                found.append((group, at, at + seconds, row["mode"], row["bs"], row["i"]))
                at += seconds
    return pd.DataFrame(found, columns=["part", "start_s", "end_s", "mode", "bs", "i"])


ORDER = (
    "recorder", "schedule", "launch", "n-gram look-up", "draft", "verify", "forward",
    "draft-extend", "post-process",
)  # fmt: skip
"""Groups of parts in the order in which an iteration runs them."""

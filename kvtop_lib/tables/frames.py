"""Flat frames of a run for figures and prose.

A number in these frames keeps the lines of ``results.jsonl`` that it comes from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from kvtop_lib import stats
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

BASELINE = "baseline"

_METRICS = """
    output_tok_s request_tok_s.p50 decode_tok_s.p50 ttft_s.p50 ttft_s.p99 tpot_s.p50 e2e_s.p50
    accept_len accept_rate tokens_per_step iteration_s.p50 active_mean queued_mean in_flight_mean
    decoding_mean requests_window output_tokens_window window_s goodput.requests_s goodput.tok_s
    goodput.attainment goodput.attainment_by_target.ttft_s goodput.attainment_by_target.tpot_s
    goodput.attainment_by_target.e2e_s ttft_intended_s.p50 ttft_intended_s.p99
    asked_rate ended_rate
"""
FIELDS = {field.replace(".", "_"): field for field in _METRICS.split()}
"""Metric column of a results frame -> its field in a line of ``results.jsonl``."""


def pick(record: dict[str, Any], field: str) -> Any:
    """Value at a dotted path of nested dicts, None where a key is missing."""
    value: Any = record
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def arms(run: Run) -> dict[str, dict[str, Any]]:
    """Parameters of the arms by id, in the run's order, the baseline first."""
    known = run.manifest.get("arms") or {}
    if not isinstance(known, dict):
        known = {a["id"]: a for a in known}
    order = sorted(known, key=lambda a: a != BASELINE)
    return {a: known[a] for a in order}


def titles(run: Run) -> list[str]:
    """Titles of the arms in the run's order, the baseline first."""
    return [a.get("title") or name for name, a in arms(run).items()]


def points(run: Run, axis: str | None = None) -> pd.DataFrame:
    """One row per point (its last attempt) of one kind of load.

    Parameters
    ----------
    run : Run
        The run.
    axis : str, optional
        `kvtop_lib.stats.LANES` or `kvtop_lib.stats.RATES`. Default: lanes where there are any.

    Returns
    -------
    DataFrame
        The columns of `kvtop_lib.store.Run.results` plus ``title``, ``method`` and ``width``
        (tokens verified per forward) of the arm; all of `FIELDS` exist and are NaN unless the
        point is ``ok``. Sorted by arm (the run's order), load and block. ``c`` is
        the load: lanes, or session starts per second; ``axis`` says which.

    Raises
    ------
    KvtopError
        When the run holds no point, or none of this kind.
    """
    results = run.results()
    if results.empty:
        raise KvtopError(f"run {run.name!r} has no point in results.jsonl yet, run the sweep")
    axis = axis or (stats.axes(results) or [stats.LANES])[0]
    results = stats.on_axis(results, axis).reset_index(drop=True).copy()  # in one piece again
    if results.empty:
        raise KvtopError(f"run {run.name!r} has no point by {axis}, which these tables are over")
    known = arms(run)
    frame = results.assign(
        axis=axis,
        title=[known.get(a, {}).get("title") or a for a in results["arm"]],
        method=[pick(known.get(a, {}), "draft.method") or "none" for a in results["arm"]],
        width=[pick(known.get(a, {}), "draft.width") or 1 for a in results["arm"]],
    )
    numbers = {}
    for column in FIELDS:
        values = pd.to_numeric(frame.get(column, np.nan), errors="coerce")
        numbers[column] = pd.Series(values, index=frame.index).where(frame["status"] == "ok")
    frame = pd.concat(
        [frame.drop(columns=[*numbers], errors="ignore"), pd.DataFrame(numbers)], axis=1
    )
    if "reason" not in frame:
        frame["reason"] = ""
    frame["reason"] = frame["reason"].fillna("")
    rank = {a: i for i, a in enumerate(known)}
    frame["rank"] = [rank.get(a, len(rank)) for a in frame["arm"]]
    return frame.sort_values(["rank", "c", "block"], ignore_index=True).drop(columns="rank")


def by_load(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean over blocks of one column of `points`, per arm and load.

    Returns
    -------
    DataFrame
        ``arm``, ``title``, ``c``, ``mean`` (None without an ok block), ``values`` (one per ok
        block), ``lines`` (of results.jsonl), ``n`` (ok blocks), ``status`` and ``reason`` of the
        first block that is not ok (else "ok", "").
    """
    rows = []
    for (arm, title, c), part in frame.groupby(["arm", "title", "c"], sort=False):
        good = part[part[column].notna()]
        rows.append(
            {"arm": arm, "title": title, "axis": _axis(part), "c": c,
             **_summary(good[column].tolist(), np.mean),
             "lines": good["line"].tolist(), **_trouble(part)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _axis(part: pd.DataFrame) -> str:
    """Kind of load of some points; a published table knows lanes only."""
    return part["axis"].iloc[0] if "axis" in part else stats.LANES


def _summary(values: list[float], average: Any) -> dict[str, Any]:
    return {"mean": float(average(values)) if values else None, "values": values, "n": len(values)}


def _trouble(part: pd.DataFrame) -> dict[str, str]:
    bad = part[part["status"] != "ok"]
    return {
        "status": bad["status"].iloc[0] if len(bad) else "ok",
        "reason": bad["reason"].iloc[0] if len(bad) else "",
    }


def ratios(
    frame: pd.DataFrame, column: str = "output_tok_s", baseline: str = BASELINE
) -> pd.DataFrame:
    """Ratio of every other arm to the baseline, formed within block pairs (`kvtop_lib.stats`).

    Returns
    -------
    DataFrame
        As `by_load`, with ``mean`` the geometric mean over the blocks in which both points are
        ok, ``low`` and ``high`` its interval (None without one), and ``lines`` a list of pairs
        (line of the arm, line of the baseline).
    """
    finite = frame.assign(**{column: frame[column].replace([np.inf], np.nan)})
    try:
        pairs = stats.block_ratios(finite, column, baseline)
    except KvtopError:  # the baseline has no point to compare with
        pairs = pd.DataFrame(columns=["arm", "workload", "c", "block", "ratio"])
    means = {(r.arm, r.c): r for r in stats.summarise(pairs).itertuples()} if len(pairs) else {}
    base = frame[frame["arm"] == baseline]
    rows = []
    for (arm, title, c), part in frame[frame["arm"] != baseline].groupby(
        ["arm", "title", "c"], sort=False
    ):
        own, found = pairs[(pairs["arm"] == arm) & (pairs["c"] == c)], means.get((arm, c))
        rows.append(
            {
                "arm": arm,
                "title": title,
                "axis": _axis(part),
                "c": c,
                "mean": found.ratio if found else None,
                "low": found.low if found and np.isfinite(found.low) else None,
                "high": found.high if found and np.isfinite(found.high) else None,
                "values": own["ratio"].tolist(),
                "n": len(own),
                "lines": _pairs(own),
                **_trouble(pd.concat([part, base[base["c"] == c]])),
            }
        )
    return pd.DataFrame(rows)


def _pairs(own: pd.DataFrame) -> list[tuple[int, int]]:
    return [(int(r.line), int(r.baseline_line)) for r in own.itertuples()]


def titled(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """A frame with a column ``arm``, sorted as the run sorts its arms, with their ``title``."""
    known = arms(run)
    rank = {a: i for i, a in enumerate(known)}
    names = [known.get(a, {}).get("title") or a for a in frame["arm"]]
    order = sorted(range(len(frame)), key=lambda i: rank.get(frame["arm"].iloc[i], len(rank)))
    return frame.assign(title=names).iloc[order].reset_index(drop=True)

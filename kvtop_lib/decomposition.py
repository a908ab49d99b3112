"""Why an arm is faster or slower: a ratio of throughput as a product of four measured factors.

For the iterations of a window that yield tokens to running requests (decode and verify)::

    tokens / window = batch x tokens per request and iteration / iteration time x busy share

where batch is the mean number of requests in such an iteration, iteration time its mean duration
and busy share the part of the window that they fill. The product is exact for the server's own
tokens; the residual against the *client's* throughput holds what is left out: first tokens, which
prefills yield, and requests at the edges of the window.

A published copy of a run holds no iterations but the factors worked out from them (`RECORD`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from kvtop_lib.metrics.recorded import read_iterations
from kvtop_lib.store import Run, read_json
from kvtop_lib.terms import KvtopError

FACTORS = ("acceptance", "iteration_time", "batch", "busy_share")
TOLERANCE = 0.02
"""Largest residual of a log ratio that passes for an explanation."""

RECORD = "factors.jsonl"
"""In a copy of a run: one line per point, its folder under ``point`` and what `factors` gives."""

ITERATIONS = "iterations.parquet"
COLUMNS = ("t_s", "dur_s", "mode", "bs", "committed_tokens")
STEPS = ("decode", "verify")


def factors(iterations: pd.DataFrame, w0_s: float, w1_s: float) -> dict[str, float]:
    """Factors of one point.

    Parameters
    ----------
    iterations
        The recorder's ``iterations.parquet``: ``t_s`` (start) and ``dur_s`` on the clock of the
        window, ``mode``, ``bs`` (requests in the forward), ``committed_tokens`` (output).
    w0_s, w1_s
        The window; an iteration belongs to it when its end lies inside, as its tokens do.

    Returns
    -------
    dict
        ``acceptance`` (tokens per request and iteration), ``iteration_time`` (s), ``batch``
        (requests), ``busy_share``, and ``tok_s``, their product over iteration time.

    Raises
    ------
    KvtopError
        When a column is missing or no decoding iteration lies in the window.
    """
    if missing := [c for c in COLUMNS if c not in iterations]:
        raise KvtopError(f"iterations without {', '.join(missing)}: not the recorder's table")
    end = iterations["t_s"] + iterations["dur_s"]
    inside = (end >= w0_s) & (end < w1_s) & iterations["mode"].isin(STEPS)
    rows = iterations[inside & (iterations["bs"] > 0)]
    if rows.empty:
        raise KvtopError("no decoding iteration lies in the window; there is nothing to decompose")
    tokens, requests, time = (
        float(rows[column].sum()) for column in ("committed_tokens", "bs", "dur_s")
    )
    found = {
        "acceptance": tokens / requests,
        "iteration_time": time / len(rows),
        "batch": requests / len(rows),
        "busy_share": time / (w1_s - w0_s),
    }
    product = found["acceptance"] * found["batch"] * found["busy_share"]
    return {**found, "tok_s": product / found["iteration_time"]}


def ratio(arm: dict[str, float], base: dict[str, float], measured: float) -> dict[str, float]:
    """Log contributions to the measured ratio of throughput between two points.

    Parameters
    ----------
    arm, base
        Outputs of `factors`.
    measured
        The clients' output throughput of the arm over the baseline's.

    Returns
    -------
    dict
        One natural logarithm per factor, positive where it raises throughput (a longer iteration
        is negative), ``residual`` (log of `measured` minus their sum) and ``log_ratio``.
    """
    logs = {k: float(np.log(arm[k] / base[k])) for k in FACTORS}
    logs["iteration_time"] *= -1
    total = float(np.log(measured))
    return {**logs, "residual": total - sum(logs.values()), "log_ratio": total}


def explained(parts: dict[str, float]) -> bool:
    """Whether the factors make up the measured ratio within `TOLERANCE`."""
    return abs(parts["residual"]) <= TOLERANCE


def of_run(run: Run) -> pd.DataFrame:
    """Factors of every point of a run that is ok and whose iterations were recorded.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``load``, ``c``, ``block``, ``line``, ``output_tok_s``, the columns
        of `factors`, and where they stand: ``point`` (folder) and ``record`` (`ITERATIONS`, or
        `RECORD` in a copy). What `by_load` takes; points without a record have no row.

    Raises
    ------
    KvtopError
        As `factors`, and when `RECORD` is damaged.
    """
    where, rows = ["arm", "workload", "load", "c", "block", "line", "output_tok_s"], []
    kept = _read(run.path / RECORD)
    for point in run.results().query("status == 'ok'").to_dict("records"):
        folder = run.folder(point)
        place = folder.relative_to(run.path).as_posix()
        iterations = read_iterations(folder)
        if iterations is not None:
            window = read_json(folder / "recording.json")["window"]
            found = {**factors(iterations, window["w0_s"], window["w1_s"]), "record": ITERATIONS}
        elif place in kept:
            found = {**kept[place], "record": RECORD}
        else:
            continue
        rows.append({**{k: point[k] for k in where}, **found, "point": place})
    return pd.DataFrame(rows, columns=[*where, *FACTORS, "tok_s", "point", "record"])


def _read(file: Path) -> dict[str, dict[str, float]]:
    """Factors by the folder of their point; none when absent."""
    kept = {}
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            kept[row["point"]] = {k: float(row[k]) for k in (*FACTORS, "tok_s")}
        except (ValueError, TypeError, KeyError) as e:
            raise KvtopError(f"{file}, line {number}: not a point's factors; publish again") from e
    return kept


def write_record(run: Run, file: Path) -> None:
    """Write `RECORD`, from which `of_run` gives the same factors without the iterations."""
    points = of_run(run)[["point", *FACTORS, "tok_s"]].to_dict("records")
    file.write_text("".join(json.dumps(row) + "\n" for row in points), encoding="utf-8")


def by_load(points: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """Decomposition of every arm against the baseline, within blocks.

    Parameters
    ----------
    points
        One row per point that is ok: ``arm``, ``workload``, ``c``, ``block``, ``output_tok_s``
        (the clients'), and the columns of `factors`.

    Returns
    -------
    DataFrame
        ``arm``, ``workload``, ``c``, the factors' log contributions, ``residual``, ``log_ratio``
        (means over block pairs), ``n`` and ``explained``.
    """
    keys = ["workload", "c", "block"]
    base = points[points["arm"] == baseline].set_index(keys)
    rows = []
    for row in points[points["arm"] != baseline].to_dict("records"):
        at = tuple(row[k] for k in keys)
        if at in base.index:
            other = base.loc[[at]].to_dict("records")[0]
            parts = ratio(row, other, row["output_tok_s"] / other["output_tok_s"])
            rows.append({k: row[k] for k in ("arm", "workload", "c")} | parts)
    columns = ["arm", "workload", "c", *FACTORS, "residual", "log_ratio"]
    frame = pd.DataFrame(rows, columns=columns)
    by = frame.groupby(["arm", "workload", "c"], sort=False)
    out = by.mean().reset_index().merge(by.size().rename("n").reset_index())
    return out.assign(explained=out["residual"].abs() <= TOLERANCE)

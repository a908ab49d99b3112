"""The README's table of what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from kvtop_lib import stats
from kvtop_lib.store import Run
from kvtop_lib.tables.frames import by_load, points, ratios
from kvtop_lib.terms import KvtopError

README_BEGIN, README_END = "<!-- measured: begin -->", "<!-- measured: end -->"


def readme_table(run: Run) -> str:
    """Markdown tables of a run: one by lanes, one by arrival rates, whichever it has.

    A point without numbers shows its status; means are over ok blocks.
    """
    held = stats.axes(run.results()) or [stats.LANES]
    makers = {stats.LANES: _by_lanes, stats.RATES: _by_rates}
    return "\n\n".join(makers[axis](points(run, axis)) for axis in held)


def _by_rates(frame: pd.DataFrame) -> str:
    shown = ("ended_rate", "ttft_intended_s_p50", "ttft_intended_s_p99", "goodput_requests_s")
    wide = {k: by_load(frame, k) for k in shown}
    out = [
        "| arm | session starts/s | requests ended/s | TTFT p50 (s) | TTFT p99 (s) "
        "| within targets (1/s) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for i, row in enumerate(wide["ended_rate"].itertuples()):
        ended, p50, p99, good = (wide[k]["mean"].iloc[i] for k in shown)
        out.append(
            f"| {markdown_text(row.title)} | {row.c:g} "
            f"| {_cell(ended, '.2f') if row.n else row.status} "
            f"| {_cell(p50, '.2f')} | {_cell(p99, '.2f')} | {_cell(good, '.2f')} |"
        )
    return "\n".join(out)


def _by_lanes(frame: pd.DataFrame) -> str:
    shown = ("output_tok_s", "ttft_s_p50", "accept_len", "iteration_s_p50")
    wide = {k: by_load(frame, k) for k in shown}
    gain = ratios(frame)
    gain_at = {(r.arm, r.c): r.mean for r in gain.itertuples()} if len(gain) else {}
    out = [
        "| arm | c | output tok/s | against baseline | TTFT p50 (s) | acceptance length "
        "| iteration p50 (ms) |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for i, row in enumerate(wide["output_tok_s"].itertuples()):
        cells = {k: w["mean"].iloc[i] for k, w in wide.items()}
        iteration = cells["iteration_s_p50"]
        out.append(
            f"| {markdown_text(row.title)} | {row.c} "
            f"| {_cell(cells['output_tok_s'], '.1f') if row.n else row.status} "
            f"| {_cell(gain_at.get((row.arm, row.c)), '+.1%', minus=1)} "
            f"| {_cell(cells['ttft_s_p50'], '.2f')} | {_cell(cells['accept_len'], '.2f')} "
            f"| {_cell(iteration * 1e3 if _has(iteration) else None, '.1f')} |"
        )
    return "\n".join(out)


def _has(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def _cell(value: float | None, fmt: str, minus: float = 0.0) -> str:
    if value is not None and value == np.inf:
        return "∞"
    return format(value - minus, fmt).replace("%", " %") if _has(value) else "–"


def markdown_text(text: str) -> str:
    """Text that can stand in a cell of a markdown table: no markup, no column break."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def write_readme(run: Run, readme: Path) -> None:
    """Replace what stands between the markers of a README with the run's table.

    Raises
    ------
    KvtopError
        When the file lacks the two marker lines.
    """
    text = readme.read_text(encoding="utf-8")
    head, begin, rest = text.partition(README_BEGIN)
    _, end, tail = rest.partition(README_END)
    if not (begin and end):
        raise KvtopError(f"{readme.name} needs the lines {README_BEGIN} and {README_END}")
    body = f"{head}{README_BEGIN}\n{readme_table(run)}\n{README_END}{tail}"
    readme.write_text(body, encoding="utf-8")

"""The README's table of what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtop_lib.store import Run
from kvtop_lib.tables.frames import by_load, points, ratios
from kvtop_lib.terms import KvtopError

README_BEGIN, README_END = "<!-- measured: begin -->", "<!-- measured: end -->"


def readme_table(run: Run) -> str:
    """Markdown table of a run: per arm and load throughput, TTFT, acceptance and iteration time.

    A point without numbers shows its status; means are over ok blocks.
    """
    frame = points(run)
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

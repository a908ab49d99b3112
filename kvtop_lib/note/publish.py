"""A small copy of a run that can be committed: ``python -m kvtop_lib.note.publish RUN FOLDER``.

It holds what a reader cites: the note, results.jsonl, manifest, deployments and decision, the table
behind every figure as CSV, and the figures as SVG and PNG. Raw records stay with the run. Of
published evidence (``published:NAME``) it holds the note, tables and figures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvtop_lib import paths
from kvtop_lib.figures import to_png, to_svg
from kvtop_lib.note.article import Article
from kvtop_lib.note.page import render_note
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.quoted import QuotedArticle, is_published
from kvtop_lib.store import Run, write_json
from kvtop_lib.tables import readme_table
from kvtop_lib.terms import KvtopError


def publish(run: Path | str, folder: Path | str) -> list[Path]:
    """Write the copy; returns its files.

    Raises
    ------
    KvtopError
        When the run cannot be read or its note cannot be rendered.
    """
    folder = Path(folder)
    article = QuotedArticle(run) if is_published(run) else Article(run)
    render_note(run, folder / "note.html")
    try:
        if not is_published(run):
            _records(Path(run), folder)
        for name, plate in article.plates().items():
            _figure(folder / "figures", name, plate)
    except OSError as e:
        raise KvtopError(f"{e.filename or folder} cannot be copied: {e.strerror or e}") from e
    return sorted(f for f in folder.rglob("*") if f.is_file())


def _records(run: Path, folder: Path) -> None:
    records = [
        run / "results.jsonl",
        run / "manifest.json",
        *sorted(run.glob("*/*/deployment.json")),
    ]
    for file in records:
        target = folder / file.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")  # a published record names no folder of a machine
        target.write_text(text.replace(str(paths.repo_root()), "."), encoding="utf-8")
    (folder / "measured.md").write_text(readme_table(Run(run)) + "\n", encoding="utf-8")
    if decided := Article(run).ev.decision:
        write_json(folder / "decision.json", decided)


def _figure(folder: Path, name: str, plate: Plate) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plate.table.to_csv(folder / f"{name}.csv", index=False)
    for i, chart in enumerate(plate.charts, 1):
        stem = name if len(plate.charts) == 1 else f"{name}-{i}"
        svg = to_svg(chart, label=plate.caption[0].striptags())
        (folder / f"{stem}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{stem}.png").write_bytes(to_png(chart, width=760, scale=1.5))


def main(argv: list[str] | None = None) -> int:
    """Command line; exit code 1 with one sentence on failure."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.note.publish", description=__doc__)
    parser.add_argument("run", help="a run folder, or published:NAME")
    parser.add_argument("folder", type=Path, help="such as outputs/published/NAME")
    args = parser.parse_args(argv)
    try:
        files = publish(args.run, args.folder)
    except (KvtopError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    size = sum(f.stat().st_size for f in files)
    print(f"{len(files)} files, {size / 1e6:.1f} MB in {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

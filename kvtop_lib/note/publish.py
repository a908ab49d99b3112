"""A small copy of a run that can be committed: ``python -m kvtop_lib.note.publish RUN FOLDER``.

It holds what a reader cites: the note, results.jsonl, manifest, plan, deployments and decision, the
factors of every point, the table behind every figure as CSV, and the figures as SVG and PNG. The
note is rendered from the copy, so whoever has the copy can render it again. Raw records stay with
the run. Of published evidence (``published:NAME``) it holds the note, tables and figures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvtop_lib import decomposition, paths
from kvtop_lib.figures import to_png, to_svg
from kvtop_lib.note.article import Article
from kvtop_lib.note.page import render_note
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.quoted import QuotedArticle, is_published
from kvtop_lib.store import write_json
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
    try:
        if is_published(run):
            article = QuotedArticle(run)
            render_note(run, folder / "note.html")
        else:
            article = Article(records(Article(run), folder))
            render_note(folder, folder / "note.html")
        for file in (folder / "figures").glob("*.*"):  # of an earlier copy
            file.unlink()
        for name, plate in article.plates().items():
            _figure(folder / "figures", name, plate)
    except OSError as e:
        raise KvtopError(f"{e.filename or folder} cannot be copied: {e.strerror or e}") from e
    return sorted(f for f in folder.rglob("*") if f.is_file())


def records(article: Article, folder: Path) -> Path:
    """Write the records of a run that its page needs; the folder.

    Raises
    ------
    KvtopError
        When the folder is the run's own, or the iterations of a point cannot be read.
    """
    run = article.ev.run
    if folder.resolve() == run.path.resolve():
        raise KvtopError(f"{folder} is the run itself; name another folder for the copy")
    _clear(folder)
    files = [
        run.path / name for name in ("results.jsonl", "manifest.json", "plan.json", "policies.json")
    ]
    arms = sorted({row["arm"] for row in run.lines()})
    files += [run.path / "keys" / f"{arm}.key" for arm in arms]  # they say which lines count
    files += sorted(run.path.glob("*/*/deployment.json"))
    for file in filter(Path.is_file, files):
        target = folder / file.relative_to(run.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(paths.portable(file.read_text(encoding="utf-8")), encoding="utf-8")
    decomposition.write_record(run, folder / decomposition.RECORD)
    (folder / "measured.md").write_text(readme_table(run) + "\n", encoding="utf-8")
    if decided := article.ev.decision:
        write_json(folder / "decision.json", decided)
    return folder


def _clear(folder: Path) -> None:
    """Take away the records of an earlier copy that this one may not have."""
    for pattern in (
        "plan.json",
        "decision.json",
        "policies.json",
        "keys/*.key",
        "*/*/deployment.json",
    ):
        for file in folder.glob(pattern):
            file.unlink()


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

"""What ``kvtop note`` does: which page of which records, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvtop_lib import paths
from kvtop_lib.note.page import render_comparison, render_note
from kvtop_lib.note.quoted import PREFIX, is_published
from kvtop_lib.terms import KvtopError


def run_folder(name: str) -> Path:
    """A folder as given, else the run of that name."""
    return Path(name) if Path(name).is_dir() else paths.runs_dir() / name


def note(
    targets: Sequence[str],
    out: Path | None = None,
    compare: bool = False,
    declared: Sequence[str] = (),
) -> Path:
    """Render a note; its file.

    Parameters
    ----------
    targets : sequence of str
        One run or published source; with ``compare`` two runs.
    out : Path, optional
        The page. Default: ``note.html`` in the run; for other pages ``outputs/notes/``.
    compare : bool
        Set two runs side by side.
    declared : sequence of str
        Groups of differences that are what is compared; commas separate several.

    Raises
    ------
    KvtopError
        When the number of targets does not fit, and as `render_note`, `render_comparison`.
    """
    notes = paths.outputs_dir() / "notes"
    if compare:
        if len(targets) != 2:
            raise KvtopError(f"--compare takes two runs, {len(targets)} given")
        if wrong := [t for t in targets if is_published(t)]:
            raise KvtopError(f"{wrong[0]} is no run of ours; only runs can be compared")
        folders = [run_folder(t) for t in targets]
        groups = [g.strip() for text in declared for g in text.split(",") if g.strip()]
        name = "-and-".join(f.resolve().name for f in folders)
        return render_comparison(*folders, out or notes / f"{name}.html", groups)
    if len(targets) != 1:
        raise KvtopError(f"one run at a time, {len(targets)} given; two go with --compare")
    if declared:
        raise KvtopError("--declare goes with --compare")
    if is_published(targets[0]):
        name = Path(targets[0].removeprefix(PREFIX)).stem
        return render_note(targets[0], out or notes / f"{name}.html")
    folder = run_folder(targets[0])
    return render_note(folder, out or folder / "note.html")

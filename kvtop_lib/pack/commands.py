"""``kvtop pack`` and ``kvtop unpack``: whole blocks of a run as archives, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvtop_lib import paths
from kvtop_lib.terms import KvtopError

Name = Annotated[str, typer.Argument(metavar="RUN", help="A file of params/profiles.")]
Folder = Annotated[Path | None, typer.Option(help="Default: outputs/published/RUN/records.")]


def pack(run: Name, folder: Folder = None) -> None:
    """Write the whole blocks of a run as archives that can be committed."""
    from kvtop_lib.pack import archive
    from kvtop_lib.params import load_profile

    place = folder or archive.folder_of(run)
    files = archive.pack(load_profile(run), paths.runs_dir() / run, place)
    if not files:
        raise KvtopError(f"run {run!r} has no whole block yet; make reproduce PROFILE={run}")
    for file in files:
        print(f"{file} ({file.stat().st_size / 1e3:.0f} kB)")


def unpack(run: Name, folder: Folder = None) -> None:
    """Put packed blocks back into a run, which goes on from there (`make reproduce`)."""
    from kvtop_lib.caller import alone
    from kvtop_lib.pack import archive
    from kvtop_lib.params import load_profile

    load_profile(run)
    target = paths.runs_dir() / run
    with alone(target):
        put, there = archive.unpack(target, folder or archive.folder_of(run))
    for name in put:
        print(f"{name}: put back")
    for name in there:
        print(f"{name}: the run has it, at least in part; it stays as it is")

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
    from kvtop_lib.caller import alone
    from kvtop_lib.pack import archive
    from kvtop_lib.params import load_profile

    profile = load_profile(run)
    target, place = paths.runs_dir() / profile.id, folder or archive.folder_of(profile.id)
    nothing = KvtopError(f"run {run!r} has no whole block yet; make reproduce PROFILE={run}")
    if not target.is_dir():
        raise nothing
    with alone(target):
        files = archive.pack(profile, target, place)
    if not files:
        raise nothing
    for file in files:
        print(f"{file} ({file.stat().st_size / 1e3:.0f} kB)")
    for file in sorted({*place.glob("*.tar.xz")} - {*files}):
        print(f"{file}: of an earlier measurement, the run has no such whole block; remove it")


def unpack(run: Name, folder: Folder = None) -> None:
    """Put packed blocks back into a run, which goes on from there (`make reproduce`)."""
    from kvtop_lib.caller import alone
    from kvtop_lib.pack import archive, restore
    from kvtop_lib.params import load_profile

    profile = load_profile(run)
    target, place = paths.runs_dir() / profile.id, folder or archive.folder_of(profile.id)
    archive.archives(place)  # said before anything is made
    with alone(target):
        back = []
        for name, put in restore.unpack(profile, target, place):
            kept = "the run has it, at least in part; it stays as it is"
            print(f"{name}: {'put back' if put else kept}", flush=True)
            back += [name] * put
        for name in restore.outdated(profile, target, back):
            print(
                f"{name}: measured with other code, parameters or model files than those here; "
                f"make reproduce PROFILE={run} would measure it again"
            )

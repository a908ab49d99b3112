"""Packed blocks back into a run: checked as a whole, then put there as a whole."""

from __future__ import annotations

import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from kvtop_lib import keys
from kvtop_lib.digest import digest
from kvtop_lib.graph import Step
from kvtop_lib.pack.archive import LINES, archives, groups
from kvtop_lib.params import Profile
from kvtop_lib.store import Run, check_result
from kvtop_lib.terms import KvtopError


def unpack(profile: Profile, run: Path, folder: Path) -> Iterator[tuple[str, bool]]:
    """Put the blocks of a folder of archives into a run, one by one.

    Yields
    ------
    (str, bool)
        An archive (``deploy``, ``b1``, ...), and whether it was put back; one that the run has,
        also in part, stays as it is.

    Raises
    ------
    KvtopError
        When the folder holds no archive, or one is damaged or of another run; the run is then as
        it was, but for whole archives before it.
    """
    known = groups(profile)
    run.mkdir(parents=True, exist_ok=True)
    for file in archives(folder):
        name = file.name.partition(".")[0]
        members, lines = _members(file)
        _check(file, members, lines, known.get(name, []), run.name)
        places = sorted({Path(*PurePosixPath(m).parts[:2]) for m in members})
        if any((run / p).exists() for p in places):
            yield name, False
            continue
        with tempfile.TemporaryDirectory(dir=run, prefix=".unpack-") as fresh:
            for member, data in members.items():
                target = Path(fresh, member)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            _place(Run(run), Path(fresh), places, lines)
        yield name, True


def outdated(profile: Profile, run: Path, names: Iterable[str]) -> list[str]:
    """Which of these archives' blocks `make reproduce` would measure again here.

    Their keys are of other code, parameters or model files than this checkout's.
    """
    own = {name: digest(inputs) for name, inputs in keys.run_keys(profile).items()}
    known = groups(profile)
    return [n for n in names if not all(s.done(run, own[s.key]) for s in known[n])]


def _members(file: Path) -> tuple[dict[str, bytes], list[dict]]:
    """Files of an archive by name, and its lines."""
    try:
        with tarfile.open(file, "r:xz") as tar:
            members = {}
            for info in tar:
                parts = PurePosixPath(info.name).parts
                if not info.isreg() or "/" in parts or ".." in parts:
                    raise ValueError(f"it holds {info.name!r}")
                members[info.name] = tar.extractfile(info).read()
        lines = [json.loads(line) for line in members.pop(LINES).decode().splitlines()]
        for line in lines:
            if not isinstance(line, dict):
                raise ValueError(f"a line of {LINES} is no result")
            check_result(line)
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, LookupError, KvtopError) as e:
        raise KvtopError(f"{file} is no packed block ({e}); fetch it again") from e
    return members, lines


def _check(
    file: Path, members: Iterable[str], lines: list[dict], steps: list[Step], run: str
) -> None:
    """Refuse an archive that is not one whole group of this run."""
    wanted = {PurePosixPath(s.folder).as_posix() for s in steps}
    found = {PurePosixPath(*PurePosixPath(m).parts[:2]).as_posix() for m in members}
    own = {(s.arm, s.block) for s in steps}
    foreign = [x for x in lines if (x["arm"], x["block"]) not in own or x.get("run", run) != run]
    if not wanted or found != wanted or foreign:
        of = ", ".join(sorted(found)[:4]) or "nothing"
        raise KvtopError(
            f"{file} is not of run {run!r}: it holds {of}, where the profile has "
            f"{', '.join(sorted(wanted)[:4]) or 'no such block'}; unpack the run that it is of"
        )


def _place(run: Run, fresh: Path, places: list[Path], lines: list[dict]) -> None:
    """Lines first: without its folder a line is measured again, a folder without lines is not."""
    there = [{k: v for k, v in row.items() if k != "line"} for row in run.lines()]
    for line in lines:
        if line not in there:
            run.append_result(line)
    moved: list[Path] = []
    try:
        for place in places:
            (run.path / place.parent).mkdir(exist_ok=True)
            os.replace(fresh / place, run.path / place)
            moved.append(place)
    except BaseException:  # Ctrl-C too: a block in part would be finished on this machine
        for place in moved:
            os.replace(run.path / place, fresh / place)
        raise

"""Finished blocks as small files, so that a long run can stop on one machine and go on elsewhere.

``kvtop pack RUN`` writes one archive per whole block, and one of the probe deployments, to
``outputs/published/<run>/records``; ``kvtop unpack RUN`` puts them back into the run's folder,
where `make reproduce PROFILE=RUN` finds them done. Arms of a block are compared with each other,
so a block travels whole or not at all: only `make retry` measures points of one elsewhere. Records
keep the key that they were measured under; where the checkout's differs, they are measured again.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

from kvtop_lib import graph, paths
from kvtop_lib.graph import Step
from kvtop_lib.params import Profile
from kvtop_lib.store import Run, jsonable
from kvtop_lib.terms import KvtopError

LINES = "results.jsonl"
"""Member of an archive: the block's lines."""

TEXTS = (".json", ".jsonl", ".ipynb", ".key", ".txt", ".partial")
AS_IS = ("lossless.json",)
"""Texts that are measured: other records depend on every letter of them."""

LEFT = ("server.log", "iterations.jsonl")
"""Files that stay: the engine's log, and its iterations, which every point holds its part of."""


def folder_of(run: str) -> Path:
    """Where the archives of a run are committed."""
    return paths.outputs_dir() / "published" / run / "records"


def groups(profile: Profile) -> dict[str, list[Step]]:
    """Steps that travel together, by the name of their archive: ``deploy``, ``b1``, ..."""
    found: dict[str, list[Step]] = {"deploy": graph.deploys(profile)}
    for step in graph.blocks(profile):
        found.setdefault(f"b{step.block}", []).append(step)
    return found


def pack(profile: Profile, run: Path, folder: Path) -> list[Path]:
    """Write an archive per whole block of a run, and one of its deployments.

    Parameters
    ----------
    profile : of the run.
    run : run folder.
    folder : of the archives; made when missing. An archive of the same content stays untouched.

    Returns
    -------
    list of Path
        All archives of what is done; empty when nothing is.

    Raises
    ------
    KvtopError
        When the run's records cannot be read.
    """
    records, packed = Run(run), []
    for name, steps in groups(profile).items():
        if all((run / f"keys/{s.key}.key").is_file() and s.done(run) for s in steps):
            file = folder / f"{name}.tar.xz"
            _write(file, _archive(records, steps))
            packed.append(file)
    return packed


def archives(folder: Path) -> list[Path]:
    """Archives of a folder.

    Raises
    ------
    KvtopError
        When it holds none.
    """
    files = sorted(folder.glob("*.tar.xz"))
    if not files:
        raise KvtopError(f"{folder} holds no packed block (*.tar.xz); `kvtop pack` writes them")
    return files


def _archive(records: Run, steps: Iterable[Step]) -> bytes:
    """The same bytes for the same records."""
    own = {(s.arm, s.block) for s in steps}
    lines = [row for row in records.lines() if (row["arm"], row["block"]) in own]
    text = "".join(
        json.dumps(jsonable({k: v for k, v in row.items() if k != "line"})) + "\n" for row in lines
    )
    members = {LINES: paths.portable(text).encode()}
    for step in steps:
        for file in sorted((records.path / step.folder).rglob("*")):
            if file.is_file() and file.name not in LEFT:
                members[str(file.relative_to(records.path))] = _content(file)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", format=tarfile.PAX_FORMAT, preset=6) as tar:
        for name, data in sorted(members.items()):
            info = tarfile.TarInfo(name)  # no owner, no time
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix == ".parquet":
        return _lean(data)
    if file.suffix in TEXTS and file.name not in AS_IS:
        data = paths.portable(data.decode(errors="surrogateescape")).encode(
            errors="surrogateescape"
        )
    return data


def _lean(data: bytes) -> bytes:
    """The same table in fewer bytes: of times only the last digits look random."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table, packed = pq.read_table(io.BytesIO(data)), io.BytesIO()
    except pa.ArrowException:  # torn by a kill; a later attempt counts, this one is kept as it is
        return data
    times = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    others = [f.name for f in table.schema if f.name not in times]
    pq.write_table(
        table, packed, compression="zstd", compression_level=19,
        use_dictionary=others, use_byte_stream_split=times,
    )  # fmt: skip
    return packed.getvalue()


def _write(file: Path, data: bytes) -> None:
    if file.is_file() and file.read_bytes() == data:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(data)
    part.replace(file)

"""Finished blocks as small files, so that a long run can stop on one machine and go on elsewhere.

``kvtop pack RUN`` writes one archive per whole block, and one of the probe deployments, to
``outputs/published/<run>/records``; ``kvtop unpack RUN`` puts them back into the run's folder,
where `make reproduce PROFILE=RUN` finds them done. Arms of a block are compared with each other,
so a block travels whole or not at all: it is never measured on two machines. Records keep the key
that they were measured under; where the checkout's differs, they are measured again as always.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kvtop_lib import graph, paths
from kvtop_lib.graph import Step
from kvtop_lib.params import Profile
from kvtop_lib.store import Run, jsonable
from kvtop_lib.terms import KvtopError

LINES = "results.jsonl"
"""Member of an archive: the block's lines."""

TEXTS = (".json", ".jsonl", ".ipynb", ".key", ".txt")
LEFT = ("server.log", "iterations.jsonl")
"""Files that stay: the engine's log, and its iterations, which every point holds its part of."""


def folder_of(run: str) -> Path:
    """Where the archives of a run are committed."""
    return paths.outputs_dir() / "published" / run / "records"


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
    groups: dict[str, list[Step]] = {"deploy": graph.deploys(profile)}
    for step in graph.blocks(profile):
        groups.setdefault(f"b{step.block}", []).append(step)
    records, packed = Run(run), []
    for name, steps in groups.items():
        if all((run / f"keys/{s.key}.key").is_file() and s.done(run) for s in steps):
            file = folder / f"{name}.tar.xz"
            _write(file, _archive(records, steps))
            packed.append(file)
    return packed


def unpack(run: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Put the blocks of a folder of archives into a run.

    Returns
    -------
    (list of str, list of str)
        What was put back (``deploy``, ``b1``, ...), and what the run has, also in part, and keeps.

    Raises
    ------
    KvtopError
        When the folder holds no archive, or one is damaged; the run is then as it was, but for
        whole archives before it.
    """
    files = sorted(folder.glob("*.tar.xz"))
    if not files:
        raise KvtopError(f"{folder} holds no packed block (*.tar.xz); `kvtop pack` writes them")
    run.mkdir(parents=True, exist_ok=True)
    put: list[str] = []
    there: list[str] = []
    for file in files:
        with tempfile.TemporaryDirectory(dir=run, prefix=".unpack-") as name:
            fresh = Path(name)
            try:
                with tarfile.open(file, "r:xz") as tar:
                    tar.extractall(fresh, filter="data")
                text = (fresh / LINES).read_text(encoding="utf-8")
                lines = [json.loads(line) for line in text.splitlines()]
            except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError) as e:
                raise KvtopError(f"{file} is no packed block ({e}); fetch it again") from e
            places = [p.relative_to(fresh) for p in sorted(fresh.glob("*/*")) if p.is_dir()]
            if any((run / p).exists() for p in places):  # also a part of it: one block, one machine
                there.append(file.name.partition(".")[0])
                continue
            for place in places:
                (run / place.parent).mkdir(exist_ok=True)
                os.replace(fresh / place, run / place)
            for line in lines:
                Run(run).append_result(line)
            put.append(file.name.partition(".")[0])
    return put, there


def _archive(records: Run, steps: Iterable[Step]) -> bytes:
    """The same bytes for the same records."""
    own = {(s.arm, s.block) for s in steps}
    lines = [row for row in records.lines() if (row["arm"], row["block"]) in own]
    text = "".join(
        json.dumps(jsonable({k: v for k, v in row.items() if k != "line"})) + "\n" for row in lines
    )
    members = {LINES: text.encode()}
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
    if file.suffix == ".parquet":
        return _lean(file)
    data = file.read_bytes()
    if file.suffix in TEXTS:  # what is committed names no folder of a machine
        data = data.replace(os.fsencode(paths.repo_root()), b".")
    return data


def _lean(file: Path) -> bytes:
    """The same table in fewer bytes: of times only the last digits look random."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, packed = pq.read_table(file), io.BytesIO()
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

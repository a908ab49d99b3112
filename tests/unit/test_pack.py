"""Blocks that travel: what is packed, what comes back, and what never does."""

from __future__ import annotations

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from params_help import write_project

from kvtop_lib import cli, graph, paths, step
from kvtop_lib.pack import archive as pack
from kvtop_lib.pack import restore
from kvtop_lib.params import load_profile
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

ARMS = ["baseline", "mtp"]
DRAFT = {"method": "ngram", "width": 2}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project of two arms and two blocks; a function that points at a machine's outputs."""
    arms = {"baseline": {"title": "b"}, "mtp": {"title": "m", "draft": DRAFT}}
    write_project(tmp_path, monkeypatch, arms, blocks=2)

    def machine(name: str):
        monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path / name))
        step.do("p", "keys")
        return paths.runs_dir() / "p"

    return machine


def table(name: str) -> pa.Table:
    """Records with what a table of ours may hold: texts, times that are not there, lists."""
    schema = pa.schema([("session", pa.string()), ("sent_s", pa.float64()),
                        ("n", pa.int32()), ("hist", pa.list_(pa.int32()))])  # fmt: skip
    rows = [(name, 0.1, 1, [1, 2]), (None, None, None, None), ("", 1e-300, -1, [])]
    return pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in rows], schema)


def measure(run, wanted) -> None:
    """Stand in for the notebooks of the steps whose names are wanted."""
    for one in graph.steps(load_profile("p")):
        if one.name not in wanted:
            continue
        folder = run / one.folder
        folder.mkdir(parents=True)
        if one.notebook == "10_deploy":
            (folder / "lossless.json").write_text(
                json.dumps({"text": f"see {paths.repo_root()}/x"})
            )
            (folder / "deployment.json").write_text(json.dumps({"at": str(run)}))
        else:
            (folder / "server.log").write_text("long")
            for load, attempt in (("c1", 1), ("c4", 1), ("c4", 2)):
                point = Run(run).point_dir(one.arm, one.block, "w", load, attempt)
                point.mkdir(parents=True)
                pq.write_table(table(f"{one.name} {load} {attempt}"), point / "requests.parquet")
                line = {"arm": one.arm, "block": one.block, "workload": "w", "load": load}
                key = (run / "keys" / f"{one.arm}.key").read_text().strip()
                more = {"c": int(load[1:]), "attempt": attempt, "status": "ok", "key": key}
                Run(run).append_result({**line, **more, "output_tok_s": 10.0 * attempt})
        one.target(run).write_text("{}")
        one.target(run).with_suffix(".key").write_text(one.wanted(run) + "\n")


EVERY = ["baseline/deploy", "mtp/deploy", "baseline/b1", "mtp/b1", "baseline/b2"]


def unpack(run, folder):
    """Names of what was put back, and of what stayed as it was."""
    found = list(restore.unpack(load_profile("p"), run, folder))
    return [n for n, put in found if put], [n for n, put in found if not put]


def names(folder):
    return sorted(f.name for f in folder.iterdir())


def test_whole_blocks_come_back_as_they_were(place, tmp_path):
    first = place("first")
    measure(first, EVERY)
    files = pack.pack(load_profile("p"), first, tmp_path / "packed")
    assert [f.name for f in files] == ["deploy.tar.xz", "b1.tar.xz"]  # b2 lacks an arm
    second = place("second")
    assert unpack(second, tmp_path / "packed") == (["b1", "deploy"], [])
    for arm in ARMS:
        there = second / arm / "b1" / "w"
        back = pq.read_table(there / "c4.a2" / "requests.parquet")
        assert back.equals(table(f"{arm}/b1 c4 2"))
        assert names(there) == ["c1", "c4", "c4.a2"]
        assert not (second / arm / "b2").exists()
        assert not (second / arm / "b1" / "server.log").exists()
    results = Run(second).results()
    assert len(Run(second).lines()) == 6
    assert results[["arm", "load", "attempt", "output_tok_s"]].values.tolist() == [
        ["baseline", "c1", 1, 10.0], ["baseline", "c4", 2, 20.0],
        ["mtp", "c1", 1, 10.0], ["mtp", "c4", 2, 20.0],
    ]  # fmt: skip
    done = {s.name for s in graph.steps(load_profile("p")) if s.done(second)}
    assert done == {"baseline/deploy", "mtp/deploy", "baseline/b1", "mtp/b1"}


def test_the_same_records_are_the_same_archive_without_a_machines_folders(place, tmp_path):
    first = place("first")
    measure(first, EVERY)
    (file, _) = pack.pack(load_profile("p"), first, tmp_path / "packed")
    before = file.read_bytes(), file.stat().st_mtime_ns
    (first / "baseline" / "deploy" / "lossless.json").touch()
    pack.pack(load_profile("p"), first, tmp_path / "packed")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    with tarfile.open(file) as tar:
        text = tar.extractfile("baseline/deploy/deployment.json").read()
        same = tar.extractfile("baseline/deploy/lossless.json").read()
        assert {(m.mtime, m.uid, m.uname) for m in tar} == {(0, 0, "")}
    assert json.loads(text) == {"at": "./first/runs/p"}
    assert same == (first / "baseline" / "deploy" / "lossless.json").read_bytes()


def test_a_block_that_the_run_has_stays_even_in_part(place, tmp_path):
    first = place("first")
    measure(first, EVERY)
    pack.pack(load_profile("p"), first, tmp_path / "packed")
    second = place("second")
    (second / "mtp" / "b1").mkdir(parents=True)
    assert unpack(second, tmp_path / "packed") == (["deploy"], ["b1"])
    assert Run(second).lines() == [] and not (second / "baseline" / "b1").exists()
    assert unpack(second, tmp_path / "packed") == ([], ["b1", "deploy"])


def tar_of(members: dict[str, str], link: str | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        if link:
            info = tarfile.TarInfo("baseline/b1")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return packed.getvalue()


WHOLE = {"baseline/b1/x": "", "mtp/b1/x": ""}
POINT = {"arm": "mtp", "block": 1, "workload": "w", "load": "c1", "c": 1, "attempt": 1,
         "status": "failed", "reason": "fake"}  # fmt: skip
BAD = {
    "outside": (tar_of({"../../../../out": ""}), "is no packed block"),
    "from the root": (tar_of({"/etc/cron.d/x": "", **WHOLE}), "is no packed block"),
    "a link": (tar_of({"results.jsonl": "", "mtp/b1/x": ""}, link="../mtp"), "is no packed block"),
    "not an archive": (b"no archive", "is no packed block"),
    "cut": (tar_of({"results.jsonl": "", **WHOLE})[:-120], "is no packed block"),
    "without lines": (tar_of(WHOLE), "is no packed block"),
    "a line that is a number": (tar_of({"results.jsonl": "5", **WHOLE}), "is no result"),
    "a failure with a number": (
        tar_of({"results.jsonl": json.dumps({**POINT, "output_tok_s": 1.0}), **WHOLE}),
        "is no packed block",
    ),
    "lines alone": (tar_of({"results.jsonl": json.dumps(POINT)}), "it holds nothing, where"),
    "an arm less": (tar_of({"results.jsonl": "", "mtp/b1/x": ""}), "it holds mtp/b1, where"),
    "another arm": (tar_of({"results.jsonl": "", **WHOLE, "z/b1/x": ""}), "is not of run 'p'"),
    "another run": (
        tar_of({"results.jsonl": json.dumps({**POINT, "run": "q"}), **WHOLE}), "is not of run 'p'",
    ),
    "another block": (
        tar_of({"results.jsonl": json.dumps({**POINT, "block": 2}), **WHOLE}), "is not of run 'p'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_hostile_or_foreign_archive_changes_nothing(place, tmp_path, what):
    run, folder = place("first"), tmp_path / "packed"
    with pytest.raises(KvtopError, match="holds no packed block"):
        unpack(run, folder)
    folder.mkdir()
    data, said = BAD[what]
    (folder / "b1.tar.xz").write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KvtopError, match=r"b1\.tar\.xz is no") as e:
        unpack(run, folder)
    assert said in str(e.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_unpacking_leaves_no_part_of_a_block(place, tmp_path, monkeypatch):
    first = place("first")
    measure(first, EVERY)
    pack.pack(load_profile("p"), first, tmp_path / "packed")
    second, real = place("second"), restore.os.replace

    def replace(source, target):
        if str(target).endswith("mtp/b1"):
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(restore.os, "replace", replace)
        unpack(second, tmp_path / "packed")
    assert not (second / "baseline" / "b1").exists() and not (second / "mtp" / "b1").exists()
    assert unpack(second, tmp_path / "packed") == (["b1", "deploy"], [])
    assert len(Run(second).lines()) == 6  # none twice


def test_a_table_that_a_kill_has_torn_travels_as_it_is(place, tmp_path):
    first = place("first")
    measure(first, EVERY)
    torn = first / "mtp" / "b1" / "w" / "c4" / "requests.parquet"
    torn.write_bytes(torn.read_bytes()[:-30])
    pack.pack(load_profile("p"), first, tmp_path / "packed")
    second = place("second")
    unpack(second, tmp_path / "packed")
    assert (second / torn.relative_to(first)).read_bytes() == torn.read_bytes()


def test_the_commands_say_what_they_did(place, monkeypatch, capsys):
    def kvtop(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["kvtop", *words])
        with pytest.raises(SystemExit) as e:
            cli.main()
        return e.value.code

    first = place("first")
    assert kvtop("pack", "p") == 1
    assert "run 'p' has no whole block yet" in capsys.readouterr().err
    measure(first, EVERY)
    assert kvtop("pack", "p") == 0
    assert "first/published/p/records/b1.tar.xz (" in capsys.readouterr().out
    assert kvtop("unpack", "p") == 0
    assert capsys.readouterr().out.splitlines() == [
        "b1: the run has it, at least in part; it stays as it is",
        "deploy: the run has it, at least in part; it stays as it is",
    ]
    (first.parents[1] / "published" / "p" / "records" / "b9.tar.xz").write_bytes(b"")
    assert kvtop("pack", "p") == 0
    assert "b9.tar.xz: of an earlier measurement" in capsys.readouterr().out
    assert kvtop("unpack", "p", "--folder", str(first)) == 1
    assert "holds no packed block" in capsys.readouterr().err
    assert kvtop("unpack", "nothing") == 1
    assert "nothing" in capsys.readouterr().err


def test_a_block_that_would_be_measured_again_is_named(place, tmp_path, monkeypatch, capsys):
    def unpacked() -> list[str]:
        monkeypatch.setattr("sys.argv", ["kvtop", "unpack", "p", "--folder", str(tmp_path / "k")])
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out.splitlines()

    first = place("first")
    measure(first, EVERY)
    pack.pack(load_profile("p"), first, tmp_path / "k")
    place("second")
    assert unpacked() == ["b1: put back", "deploy: put back"]
    file = tmp_path / "params" / "profiles" / "p.yaml"
    file.write_text(file.read_text().replace("window_s: 1", "window_s: 77"))
    monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path / "third"))
    said = unpacked()
    assert said[:2] == ["b1: put back", "deploy: put back"]  # a probe has no window
    (line,) = said[2:]
    assert line.startswith("b1: measured with other code, parameters")
    assert "make reproduce PROFILE=p would" in line

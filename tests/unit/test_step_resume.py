"""Steps of a run in one process: what goes on, what is set aside, what is asked for again."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from params_help import write_project

from kvtop_lib import graph, runner, step
from kvtop_lib.params import load_profile
from kvtop_lib.terms import KvtopError


@pytest.fixture
def play(tmp_path, monkeypatch):
    """A run of one arm whose notebooks are replaced; ``play["fails"]`` stops a sweep midway."""
    write_project(tmp_path, monkeypatch, {"baseline": {"title": "b"}})
    state = {"fails": False, "status": "failed", "seen": [], "run": tmp_path / "outputs/runs/p"}

    def run(notebook, out, given):
        folder = out.parent
        folder.mkdir(parents=True, exist_ok=True)
        asked = folder / "retry"
        state["seen"].append(asked.read_text().split() if asked.is_file() else [])
        line = {"arm": "baseline", "block": 1, "workload": "w", "load": "c4", "c": 4, "attempt": 1}
        with (state["run"] / "results.jsonl").open("a") as f:
            f.write(json.dumps({**line, "status": state["status"], "key": given["key"]}) + "\n")
        if state["fails"]:
            raise KvtopError("killed")
        out.write_text("{}")

    monkeypatch.setattr(runner, "run", run)
    step.do("p", "keys")
    return state


def test_a_plan_is_there_before_anything_runs(play):
    plan = json.loads((play["run"] / "plan.json").read_text())
    assert [(x["arm"], x["block"], x["loads"]) for x in plan["lifetimes"]] == [
        ("baseline", 1, ["c1", "c4"])
    ]
    assert play["seen"] == []


def test_a_killed_block_goes_on_where_it_stopped(play, capsys):
    block = play["run"] / "baseline" / "b1"
    play["fails"] = True
    with pytest.raises(KvtopError, match="killed"):
        step.do("p", "baseline/b1")
    (block / "raw").write_text("measured before")
    play["fails"] = False
    step.do("p", "baseline/b1")
    assert "goes on where it stopped" in capsys.readouterr().out
    assert (block / "raw").is_file() and not (play["run"] / "superseded").exists()
    step.do("p", "baseline/b1")
    assert len(play["seen"]) == 2  # done: not run again
    assert not list(block.glob("*.took.json"))  # not the time of a whole block


def test_another_key_sets_the_unfinished_block_aside(play, tmp_path):
    block = play["run"] / "baseline" / "b1"
    play["fails"] = True
    with pytest.raises(KvtopError, match="killed"):
        step.do("p", "baseline/b1")
    (block / "raw").write_text("measured before")
    file = tmp_path / "params" / "profiles" / "p.yaml"
    file.write_text(file.read_text().replace("window_s: 1", "window_s: 2"))
    step.do("p", "keys")
    play["fails"] = False
    step.do("p", "baseline/b1")
    (kept,) = (play["run"] / "superseded").iterdir()
    assert (kept / "raw").read_text() == "measured before" and not (block / "raw").exists()


def test_failed_points_are_asked_for_by_name_and_only_once(play, capsys):
    step.do("p", "baseline/b1")
    (one,) = graph.blocks(load_profile("p"))
    assert one.done(play["run"])
    took_s = one.took_s(play["run"])
    assert took_s is not None
    step.do("p", "retry")
    assert "baseline/b1: c4 to be measured again" in capsys.readouterr().out
    assert not one.done(play["run"])
    play["status"] = "ok"
    step.do("p", "baseline/b1")
    assert play["seen"] == [[], ["c4"]] and one.done(play["run"])
    assert one.took_s(play["run"]) == took_s  # the whole block's, not the one point's
    assert not (play["run"] / "baseline" / "b1" / "retry").exists()
    capsys.readouterr()
    step.do("p", "retry")  # nothing has failed any more
    assert one.done(play["run"])
    assert capsys.readouterr().out == "nothing to measure again: every measured point is ok\n"


def test_a_retry_with_nothing_to_do_says_why(play, capsys):
    step.do("p", "retry")
    assert capsys.readouterr().out == "nothing to measure again: no point has been measured yet\n"
    play["fails"] = True
    with pytest.raises(KvtopError, match="killed"):
        step.do("p", "baseline/b1")
    capsys.readouterr()
    step.do("p", "retry")
    assert "nothing to measure again: points that are not ok are all in" in capsys.readouterr().out


def test_a_run_is_worked_on_by_one_process_at_a_time(play, capsys):
    holder = "import sys\nfrom pathlib import Path\nfrom kvtop_lib.caller import alone\n"
    holder += "with alone(Path(sys.argv[1])):\n    print('held', flush=True)\n    input()"
    command = [sys.executable, "-c", holder, str(play["run"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert step.main(["p", "baseline/b1"]) == 1
        assert f"kvtop: process {other.pid} works on run 'p'; wait" in capsys.readouterr().err
        other.kill()
    assert play["seen"] == []
    assert step.main(["p", "baseline/b1"]) == 0  # a killed process holds nothing
    assert play["seen"] == [[]]


def test_a_fault_of_the_disk_is_one_sentence(play, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/file")

    monkeypatch.setattr(step, "update_keys", full)
    assert step.main(["p", "keys"]) == 1
    assert capsys.readouterr().err == "kvtop: a/file: No space left on device\n"


def test_building_the_checkpoint_is_told_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    model = SimpleNamespace(id="m", builder="b", path=tmp_path)
    step.ensure_model(model)
    assert capsys.readouterr().out == "  building the checkpoint of 'm' first\n"
    (tmp_path / "config.json").write_text("{}")
    step.ensure_model(model)
    assert capsys.readouterr().out == ""

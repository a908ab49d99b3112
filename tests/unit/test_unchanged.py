"""Nothing to do is said only where nothing was touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kvtop_lib.unchanged import remember, seen, unchanged

TICK_S = 0.03  # file times are as coarse as the system's clock tick


@pytest.fixture
def place(tmp_path):
    """Sources and a run whose keys were worked out from them."""
    read = [tmp_path / "sources", tmp_path / "trace.jsonl", tmp_path / "absent"]
    run = tmp_path / "run"
    (read[0] / "inner").mkdir(parents=True)
    (run / "keys").mkdir(parents=True)
    for file in (read[0] / "a.py", read[0] / "inner" / "b.yaml", read[1]):
        file.write_text("one")
    before = seen(read)
    (run / "keys" / "arm.key").write_text("k")
    remember(run, read, [run / "keys"], before)
    time.sleep(TICK_S)
    return tmp_path


CHANGES = {
    "content of one length": lambda p: (p / "sources/inner/b.yaml").write_text("two"),
    "a new file": lambda p: (p / "sources/inner/c.yaml").write_text(""),
    "one file less": lambda p: (p / "sources/a.py").unlink(),
    "a file instead of another": lambda p: os.replace(p / "trace.jsonl", p / "sources/a.py"),
    "what was absent": lambda p: (p / "absent").mkdir(),
    "the trace alone": lambda p: (p / "trace.jsonl").write_text("two"),
    "a lost key": lambda p: (p / "run/keys/arm.key").unlink(),
    "no memory": lambda p: (p / "run/seen.json").unlink(),
    "a torn memory": lambda p: (p / "run/seen.json").write_text("{"),
    "a memory of another kind": lambda p: (p / "run/seen.json").write_text("[]"),
}


def test_nothing_touched(place):
    assert unchanged(place / "run")
    (place / "sources" / "__pycache__").mkdir()
    (place / "sources" / "__pycache__" / "a.pyc").write_text("")
    assert unchanged(place / "run")  # Python's own files are nobody's input


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_was_touched_is_seen(place, what):
    CHANGES[what](place)
    assert not unchanged(place / "run")


def test_other_places_are_other_inputs(place, monkeypatch):
    monkeypatch.setenv("KVTOP_CACHE", str(place / "elsewhere"))
    assert not unchanged(place / "run")


def test_a_change_while_keys_are_worked_out_counts(tmp_path):
    (tmp_path / "a").write_text("one")
    before = seen([tmp_path / "a"])
    time.sleep(TICK_S)
    (tmp_path / "a").write_text("two")
    remember(tmp_path, [tmp_path / "a"], [], before)
    assert not unchanged(tmp_path)


def test_the_command_is_its_exit_code_and_loads_next_to_nothing(place):
    code = "import sys; sys.argv = ['', sys.argv[1]]\n"
    code += "import runpy\n"
    code += "try: runpy.run_module('kvtop_lib.unchanged', run_name='__main__')\n"
    code += "except SystemExit as e: print(int(e.code), 'pydantic' in sys.modules)"
    run = [sys.executable, "-c", code, str(place / "run")]
    said = subprocess.run(run, capture_output=True, text=True)
    assert said.stdout == "0 False\n", said.stderr

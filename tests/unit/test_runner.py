"""A notebook runs all or nothing, and a wrong parameter stops it before it starts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from kvtop_lib import runner
from kvtop_lib.terms import KvtopError

DEFAULTS = 'n = 1\nname = "x"\nshare = 0.5\nfast = False\nwords = ["a"]'


def notebook(folder: Path, *cells: str, defaults: str = DEFAULTS) -> Path:
    tagged = new_code_cell(defaults, metadata={"tags": ["parameters"]})
    file = folder / "nb.ipynb"
    nbformat.write(new_notebook(cells=[tagged, *map(new_code_cell, cells)]), file)
    return file


def test_names_and_types_come_from_the_parameters_cell(tmp_path):
    file = notebook(tmp_path)
    given = {"n": "7", "name": "7", "share": "1", "fast": "true", "words": "['b', 'c']"}
    assert runner.check(file, given) == {
        "n": 7,
        "name": "7",
        "share": 1.0,
        "fast": True,
        "words": ["b", "c"],
    }
    assert runner.parameters(file)["share"] == 0.5


def test_an_unknown_parameter_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(KvtopError, match="nb.ipynb has no parameter 'nam', did you mean 'name'"):
        runner.check(notebook(tmp_path), {"nam": "1"})
    with pytest.raises(KvtopError, match="has no parameter 'zzz', known: n, name, share"):
        runner.check(notebook(tmp_path), {"zzz": "1"})


@pytest.mark.parametrize("given", [{"n": "1.5"}, {"n": "many"}, {"fast": "1"}, {"share": "true"}])
def test_a_value_of_another_type_is_an_error(tmp_path, given):
    with pytest.raises(KvtopError, match="must be"):
        runner.check(notebook(tmp_path), given)


def test_a_notebook_is_never_its_own_output(tmp_path):
    file = notebook(tmp_path)
    before = file.read_bytes()
    with pytest.raises(KvtopError, match="is the notebook itself"):
        runner.run(file, tmp_path / "." / "nb.ipynb", {})
    assert file.read_bytes() == before


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"cells": [{}]}'])
def test_a_file_that_is_no_notebook_is_named(tmp_path, text):
    (tmp_path / "nb.ipynb").write_text(text)
    with pytest.raises(KvtopError, match="nb.ipynb is not a notebook"):
        runner.parameters(tmp_path / "nb.ipynb")


def test_a_parameters_cell_must_be_assignments(tmp_path):
    with pytest.raises(KvtopError, match="must hold only name = value"):
        runner.parameters(notebook(tmp_path, defaults="import os\nn = 1"))


def test_a_missing_notebook_is_named(tmp_path):
    with pytest.raises(KvtopError, match="there is no notebook"):
        runner.check(tmp_path / "none.ipynb", {})


def test_a_wrong_parameter_starts_nothing(tmp_path, capfd):
    file, out = notebook(tmp_path), tmp_path / "out.ipynb"
    assert runner.main([str(file), str(out), "-p", "nn", "2"]) == 1
    assert capfd.readouterr().err.startswith("kvtop: nb.ipynb has no parameter 'nn'")
    assert list(tmp_path.iterdir()) == [file]


def test_a_passing_notebook_is_renamed_and_its_prints_are_streamed(tmp_path, capfd):
    file, out = notebook(tmp_path, "print('sum', n + 1)"), tmp_path / "deep" / "out.ipynb"
    assert runner.main([str(file), str(out), "-p", "n", "41"]) == 0
    assert "sum 42" in capfd.readouterr().out
    assert [p.name for p in out.parent.iterdir()] == ["out.ipynb"]


def test_a_failing_notebook_leaves_a_partial_and_no_result(tmp_path, capfd):
    file, out = notebook(tmp_path, "raise ValueError('too small')"), tmp_path / "out.ipynb"
    out.write_text("an older result")
    assert runner.main([str(file), str(out)]) == 1
    error = capfd.readouterr().err.strip()
    assert error.startswith("kvtop: nb.ipynb failed in cell 2: ValueError: too small")
    assert len(error.splitlines()) == 1
    assert not out.exists()
    assert "too small" in (tmp_path / "out.ipynb.partial").read_text()


FAKE = """
import sys; sys.path.insert(0, {here!r})
from pathlib import Path
from test_engine_server import fake
server = fake(Path({folder!r})); server.wait_ready(300)
import os; Path({folder!r}, "kernel").write_text(str(os.getpid()))
import time; time.sleep(120)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, "kernel"])
def test_no_server_outlives_its_notebook(tmp_path, number):
    from test_engine_server import assert_all_end, pids

    here = str(Path(__file__).parent)
    file = notebook(tmp_path, FAKE.format(here=here, folder=str(tmp_path)))
    out = tmp_path / "out.ipynb"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtop_lib.runner", str(file), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 600
    while not (tmp_path / "kernel").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    numbers = [*pids(tmp_path), kernel := int((tmp_path / "kernel").read_text())]
    if number == "kernel":
        os.kill(kernel, signal.SIGKILL)
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=600)
    assert_all_end(numbers)
    assert process.returncode != 0
    assert not out.exists()
    if number != signal.SIGKILL:
        assert error.splitlines()[-1].startswith("kvtop: ")
        assert "Traceback" not in error

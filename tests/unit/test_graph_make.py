"""Make measures what has changed and nothing else: the real Makefile over small notebooks.

Notebooks run without a kernel here (`step_without_kernel`), since only the graph is the matter.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook, new_output
from test_engine_server import living

from kvtop_lib.engine.supervise import descendants

ROOT = Path(__file__).parents[2]
LOG = """
import os
with open(os.environ["KVTOP_ROOT"] + "/log", "a") as f:
    print({text}, file=f)
"""
SWEEP = (
    LOG.format(text='"sweep", arm, block')
    + """
import json
line = {"run": "p", "arm": arm, "block": block, "workload": "w", "load": "c1", "c": 1,
        "attempt": 1, "status": "failed", "reason": "fake", "key": key}
open(run + "/results.jsonl", "a").write(json.dumps(line) + "\\n")
open(f"{run}/{arm}/b{block}/record", "w").write("raw")
"""
)
DEPLOY = LOG.format(text='"deploy", arm') + 'open(folder + "/lossless.json", "w").write("[]")'
FAKES = {
    "10_deploy": ('profile = ""\narm = ""\nfolder = ""', DEPLOY),
    "20_sweep": ('profile = ""\narm = ""\nblock = 0\nrun = ""\nkey = ""', SWEEP),
    "30_acceptance": ('run = ""', LOG.format(text='"acceptance"')),
    "40_iterations": ('run = ""', LOG.format(text='"iterations"')),
    "50_decision": ('run = ""', LOG.format(text='"decision"')),
    "90_note": ('run = ""', LOG.format(text='"note"')),
}
HOLD = """
import os, time
if not os.path.exists(f"{run}/go"):
    open(f"{run}/measuring", "w").write(f"{os.getpid()}\\n")
    try:
        time.sleep(600)
    finally:
        while not os.path.exists(f"{run}/end"):
            time.sleep(0.05)
"""
ANALYSED = ["acceptance", "iterations", "decision", "note"]
FIRST = [
    "deploy baseline", "deploy other", "sweep baseline 1", "sweep other 1", "sweep other 2",
    "sweep baseline 2", *ANALYSED,
]  # fmt: skip


def write_notebook(root: Path, name: str, *, code: str | None = None) -> None:
    defaults, body = FAKES[name]
    cells = [
        new_code_cell(defaults, metadata={"tags": ["parameters"]}),
        new_code_cell(code or body),
    ]
    nbformat.write(new_notebook(cells=cells), root / "notebooks" / f"{name}.ipynb")


@pytest.fixture
def root(tmp_path):
    """A small checkout: the real Makefile, fake notebooks, two arms and two blocks."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("arms", "models", "workloads", "profiles"):
        (tmp_path / "params" / folder).mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "trace.jsonl").write_text("{}\n")
    for name in FAKES:
        write_notebook(tmp_path, name)
    params = {
        "arms/baseline": {"title": "b"},
        "arms/other": {"title": "o", "draft": {"method": "ngram", "width": 2}},
        "models/m": {"title": "m", "checkpoint": str(tmp_path / "model"), "context_tokens": 512},
        "workloads/w": {
            "title": "w", "trace": str(tmp_path / "trace.jsonl"), "max_output_tokens": 8,
        },
        "profiles/p": {
            "title": "p", "model": "m", "workload": "w", "arms": ["baseline", "other"],
            "loads": [1], "blocks": 2, "burn_in_s": 0, "warmup_s": 0, "window_s": 1,
            "drain_s": 0, "timeout_s": 1,
        },
    }  # fmt: skip
    for name, data in params.items():
        (tmp_path / "params" / f"{name}.yaml").write_text(yaml.safe_dump(data))
    return tmp_path


def start(root: Path, *goals: str) -> subprocess.Popen:
    """A Make that runs, its output in a pipe."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "KVTOP"))}
    python = f"{sys.executable} {Path(__file__).with_name('step_without_kernel.py')}"
    command = ["make", *(goals or ["reproduce"]), "PROFILE=p", f"PY={python}", "READY=Makefile"]
    return subprocess.Popen(
        command, cwd=root, env=env | {"KVTOP_ROOT": str(root)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def make(root: Path, *goals: str, ok: bool = True) -> tuple[list[str], str]:
    """Run Make; what the notebooks have logged, and what was printed."""
    (root / "log").unlink(missing_ok=True)
    process = start(root, *goals)
    out, _ = process.communicate(timeout=900)
    assert (process.returncode == 0) == ok, out
    return logged(root), out


def logged(root: Path) -> list[str]:
    log = root / "log"
    return log.read_text().splitlines() if log.is_file() else []


def edit(root: Path, name: str, **fields) -> None:
    file = root / "params" / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **fields}))


def test_the_graph_measures_what_has_changed_and_nothing_else(root):
    run = root / "outputs" / "runs" / "p"
    done, out = make(root)
    assert done == FIRST  # blocks interleaved: A B, then B A
    assert "[1/9]" in out and "left" in out

    done, out = make(root)
    assert (done, "nothing to do" in out) == ([], True)

    # touched files, and a notebook saved in JupyterLab with outputs, cost nothing
    for file in [*root.rglob("*.yaml"), *root.glob("notebooks/*"), *run.glob("keys/*.key")]:
        file.touch()
    nb = nbformat.read(root / "notebooks" / "20_sweep.ipynb", 4)
    nb.cells[1].outputs = [new_output("stream", text="42")]
    nb.metadata["language_info"] = {"name": "python"}
    nbformat.write(nb, root / "notebooks" / "20_sweep.ipynb")
    edit(root, "arms/other", description="prose that does not act")
    done, _ = make(root)
    assert [x for x in done if x != "note"] == []

    # one arm edited: this arm only, its earlier records kept as they were
    edit(root, "arms/other", env={"X": "1"})
    done, out = make(root)
    assert done == [
        "deploy other", "sweep other 1", "sweep other 2", *ANALYSED,
    ]  # fmt: skip
    assert "other: to be measured again, changed: arm (env)" in out
    kept = sorted(p.name.rsplit("-", 1)[0] for p in (run / "superseded").glob("other-*"))
    assert kept == ["other-b1", "other-b2", "other-deploy"]
    assert {p.read_text() for p in run.glob("superseded/other-b*/record")} == {"raw"}

    # a measurement does not depend on the deployment's or the analyses' notebooks
    write_notebook(root, "30_acceptance", code=FAKES["30_acceptance"][1] + "1 + 1")
    done, _ = make(root)
    assert done == ["acceptance", "note"]

    lines = [json.loads(x) for x in (run / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert len({x["key"] for x in lines if x["arm"] == "other"}) == 2


def test_a_failing_block_leaves_a_partial_and_no_result(root):
    edit(root, "profiles/p", arms=["baseline"], blocks=1)
    write_notebook(root, "20_sweep", code="raise ValueError('out of tokens')")
    _, out = make(root, ok=False)
    assert "20_sweep.ipynb failed in cell 2: ValueError: out of tokens" in out
    block = root / "outputs" / "runs" / "p" / "baseline" / "b1"
    assert sorted(p.name for p in block.iterdir()) == ["20_sweep.ipynb.partial", "begun.key"]
    write_notebook(root, "20_sweep")
    done, _ = make(root)
    assert done == ["sweep baseline 1", *ANALYSED]  # deployed before
    assert not list(block.glob("*.partial"))


def test_an_interrupted_block_goes_on_and_failed_points_are_asked_for_again(root):
    """The block's folder stays when its key is the same; `make retry` names the points."""
    edit(root, "profiles/p", arms=["baseline"], blocks=1)
    block = root / "outputs" / "runs" / "p" / "baseline" / "b1"
    body = FAKES["20_sweep"][1]
    write_notebook(root, "20_sweep", code=body + "if not os.path.exists(f'{run}/go'): 1 / 0\n")
    make(root, ok=False)
    (block / "mark").write_text("measured before the interruption")
    (block.parents[1] / "go").write_text("")
    done, out = make(root)
    assert "sweep baseline 1" in done and "goes on where it stopped" in out
    assert (block / "mark").is_file() and not (block.parents[1] / "superseded").exists()
    plan = json.loads((block.parents[1] / "plan.json").read_text())
    assert [(x["arm"], x["block"]) for x in plan["lifetimes"]] == [("baseline", 1)]

    done, out = make(root)  # the failed point is not measured again by itself
    assert (done, "nothing to do" in out) == ([], True)
    done, out = make(root, "retry")
    assert "baseline/b1: c1 to be measured again" in out
    assert done[0] == "sweep baseline 1" and (block / "mark").is_file()
    assert not (block / "retry").exists()


def test_a_killed_make_takes_its_step_along_and_the_next_call_goes_on(root):
    """SIGKILL of the outermost make alone; the shell, the make and the step below it live on."""
    edit(root, "profiles/p", arms=["baseline"], blocks=1)
    write_notebook(root, "20_sweep", code=HOLD + FAKES["20_sweep"][1])
    run = root / "outputs" / "runs" / "p"
    first, below = start(root), []
    try:
        while not ((mark := run / "measuring").is_file() and mark.read_text().endswith("\n")):
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.05)
        step, below = int(mark.read_text()), descendants(first.pid)
        assert step in below and len(below) > 1
        first.kill()
        (run / "go").write_text("")
        second = start(root)
        said = next((line for line in second.stdout if "process" in line), "")
        assert f"process {step} of a call that was killed is ending" in said
        (run / "end").write_text("")
        out, _ = second.communicate(timeout=900)
        assert second.returncode == 0, out
        assert "goes on where it stopped" in out and "done: " in out
        told, _ = first.communicate(timeout=900)  # ends when all that hold its pipe have ended
        assert "baseline/b1 was interrupted; what was measured is kept" in told
        assert not living(below)
    finally:
        first.kill()
        for pid in living(below):
            os.kill(pid, signal.SIGKILL)
    assert logged(root) == ["deploy baseline", "sweep baseline 1", *ANALYSED]


def test_clean_spares_raw_records(root):
    edit(root, "profiles/p", arms=["baseline"], blocks=1)
    make(root)
    run = root / "outputs" / "runs" / "p"
    make(root, "clean")
    assert not (run / "note.html").exists()
    assert (run / "baseline" / "b1" / "record").is_file()
    assert len((run / "results.jsonl").read_text().splitlines()) == 1
    done, _ = make(root)
    assert done == ANALYSED


def test_a_wrong_parameter_file_stops_everything_with_one_sentence(root):
    edit(root, "arms/other", sever_args={})
    done, out = make(root, ok=False)
    assert done == []
    assert "unknown key 'sever_args', did you mean 'server_args'?" in out


@pytest.mark.parametrize("variable", ["VENV", "KVTOP_OUTPUTS"])
def test_a_folder_that_make_cannot_name_is_refused(root, variable):
    done = subprocess.run(
        ["make", "keys", f"{variable}=a b"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode and "must name a folder each, without blanks" in done.stderr
    assert not (root / "outputs").exists()


def test_byte_code_is_kept_even_where_the_environment_forbids_it(root):
    """Imports are most of what a short step costs; a container's image often sets this variable."""
    seen = "import sys; print('forbidden:', sys.dont_write_bytecode)"
    command = ["make", "lab", f'PY={sys.executable} -c "{seen}" #', "READY=Makefile"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    said = subprocess.run(command, cwd=root, env=env, text=True, capture_output=True, timeout=600)
    assert said.stdout.splitlines()[-1] == "forbidden: False", said

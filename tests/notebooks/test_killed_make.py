"""A make killed while a point is measured: step, kernel and server end, and the next goes on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from checkout import NOTEBOOKS, REPO, make

from kvtop_lib import paths
from kvtop_lib.engine.supervise import descendants
from kvtop_lib.store import Run

pytestmark = pytest.mark.notebook
BLOCK = "outputs/runs/fake/baseline/b1"


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = make(tmp_path, monkeypatch)
    profile = paths.params_dir() / "profiles" / "fake.yaml"
    content = yaml.safe_load(profile.read_text())
    content |= {
        "arms": ["baseline"],
        "loads": [1],
        "windows": {},
        "window_s": 10,
        "lossless_prompts": 2,
    }
    profile.write_text(yaml.safe_dump(content))
    shutil.copytree(NOTEBOOKS, root / "notebooks")
    shutil.copytree(REPO / "requirements", root / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPO / name, root)
    return root


def started(root: Path, goal: str) -> subprocess.Popen:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", goal, "PROFILE=fake", f"PY={sys.executable}", "READY=Makefile"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=root, env=env, **pipe)


def living(pids: list[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
    return found


def test_nothing_outlives_a_killed_make_and_the_next_call_goes_on(root):
    keys = started(root, "keys")
    assert "kvtop:" not in keys.communicate(timeout=600)[0] and keys.returncode == 0
    first, below = started(root, f"{BLOCK}/20_sweep.ipynb"), []
    try:
        while not (root / BLOCK / "asks" / "c1").is_dir():
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.1)
        below = descendants(first.pid)
        commands = " ".join(w for p in living(below) for w in p.cmdline())
        assert all(x in commands for x in ("kvtop_lib.step", "ipykernel", "sglang.launch_server"))
        first.kill()
        said, _ = first.communicate(timeout=600)
        assert "baseline/b1 was interrupted; what was measured is kept" in said
        deadline = time.monotonic() + 120
        while living(below) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not living(below)
    finally:
        first.kill()
        for process in living(below):
            process.kill()
    second = started(root, f"{BLOCK}/20_sweep.ipynb")
    said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert "goes on where it stopped" in said and "baseline: starting the server" in said
    (point,) = Run(root / "outputs" / "runs" / "fake").results().to_dict("records")
    assert (point["load"], point["attempt"]) == ("c1", 2)
    assert not (root / "outputs" / "runs" / "fake" / "superseded").exists()

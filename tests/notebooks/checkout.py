"""A checkout in miniature for the notebook tests: parameters, a trace, an engine with a script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from kvtop_lib import paths, runner
from kvtop_lib.trace import Session, Trace, Turn, write_sessions

HERE = Path(__file__).parent
REPO = HERE.parents[1]
NOTEBOOKS = REPO / "notebooks"
LOADS = [1, 2]

FILES = {
    "arms/baseline": {"title": "Baseline"},
    "arms/mtp_w2": {"title": "MTP, width 2", "draft": {"method": "mtp", "width": 2}},
    "arms/other": {
        "title": "Another text",
        "draft": {"method": "ngram", "width": 2},
        "env": {"FAKE_DIFFERS": "ask 3"},
    },
    "arms/dies": {"title": "Dies at two", "env": {"FAKE_DIE_AT": "2"}},
    "models/fake": {
        "title": "A script",
        "checkpoint": "checkpoint",
        "context_tokens": 2048,
        "device": "cpu",
        "dtype": "float32",
        "mtp": {"algorithm": "NEXTN"},
    },
    "workloads/asks": {"title": "Asks", "trace": "trace.jsonl", "max_output_tokens": 32},
    "profiles/fake": {
        "title": "Fake",
        "model": "fake",
        "arms": ["baseline", "mtp_w2"],
        "workload": "asks",
        "loads": LOADS,
        "blocks": 1,
        "burn_in_s": 0.2,
        "warmup_s": 0.2,
        "window_s": 2.6,
        "windows": {2: 3.1},
        "drain_s": 2,
        "timeout_s": 10,
        "lossless_prompts": 6,
    },
}


def sessions(n: int = 400) -> tuple[Session, ...]:
    """Sessions of one turn whose prompts are all different."""
    asked = [({"role": "user", "content": f"ask {i}."},) for i in range(n)]
    return tuple(
        Session(f"s{i:04}", "t", (Turn(messages, "x", 8, "stop", 10),))
        for i, messages in enumerate(asked)
    )


def make(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the checkout below `root` and point the library, and kernels, at it."""
    here = {"models/fake": "checkpoint", "workloads/asks": "trace"}
    for name, content in FILES.items():
        if (key := here.get(name)) is not None:
            content = {**content, key: str(root / content[key])}
        file = root / "params" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    (root / "checkpoint").mkdir()
    (root / "checkpoint" / "config.json").write_text("{}")
    write_sessions(Trace("asks", {}, sessions()), root / "trace.jsonl")
    monkeypatch.setenv("KVTOP_ROOT", str(root))
    monkeypatch.setenv("KVTOP_CACHE", str(root / "cache"))
    places = [HERE / "fake_engine", HERE.parent, REPO]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    assert paths.params_dir() == root / "params"
    return root


def execute(name: str, out: Path, **given) -> list[str]:
    """Run a notebook of the repository; the texts that its cells have shown."""
    runner.run(NOTEBOOKS / f"{name}.ipynb", out / f"{name}.ipynb", given)
    cells = json.loads((out / f"{name}.ipynb").read_text())["cells"]
    shown = []
    for output in (o for c in cells if c["cell_type"] == "code" for o in c["outputs"]):
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        shown.append("".join(text))
    return shown

"""What a key depends on, and what it must not depend on."""

import json
from functools import cache

import pytest
import yaml

from kvtop_lib import digest, keys, params

ARM_KEYS = {"baseline", "mtp_w2"}
ANALYSED = {"30_acceptance", "40_iterations", "50_decision"}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Parameters, a trace, lock files and notebooks in a folder of their own."""
    monkeypatch.setenv("KVTOP_ROOT", str(tmp_path))
    monkeypatch.setattr(keys, "sources", cache(keys.sources))  # whoever edits the library now
    for folder in ("model", "layer", "notebooks", "requirements"):
        (tmp_path / folder).mkdir()
    (tmp_path / "trace.jsonl").write_text("{}\n")
    (tmp_path / "requirements" / "cpu.lock").write_text("torch==1.0\npandas==1.0\n")
    for name in ("10_deploy", "20_sweep", "90_note"):
        save(tmp_path, name, ["x = 1"])
    files = {
        "arms/baseline": {"title": "b"},
        "arms/mtp_w2": {"title": "m", "draft": {"method": "mtp", "width": 2}},
        "models/m": {
            "title": "m", "checkpoint": str(tmp_path / "model"), "context_tokens": 512,
            "mtp": {"algorithm": "EAGLE", "draft": str(tmp_path / "layer")},
        },
        "workloads/w": {
            "title": "w", "trace": str(tmp_path / "trace.jsonl"), "max_output_tokens": 8,
        },
        "profiles/p": {
            "title": "p", "model": "m", "workload": "w", "arms": ["baseline", "mtp_w2"],
            "loads": [1], "burn_in_s": 0, "warmup_s": 0, "window_s": 1, "drain_s": 0,
            "timeout_s": 1,
        },
    }  # fmt: skip
    for name, content in files.items():
        file = tmp_path / "params" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    return tmp_path


def save(root, name, code, **cell) -> None:
    cells = [{"cell_type": "code", "source": s, "metadata": {}, **cell} for s in code]
    cells.append({"cell_type": "markdown", "source": cell.get("prose", "why"), "metadata": {}})
    (root / "notebooks" / f"{name}.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))


def edit(root, name, **fields) -> None:
    file = root / "params" / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **fields}))


def now() -> dict[str, str]:
    return {k: digest.digest(v) for k, v in keys.run_keys(params.load_profile("p")).items()}


def changed(before: dict[str, str]) -> set[str]:
    after = now()
    return {k for k in after if after[k] != before.get(k)} - {"manifest"}


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("arms/mtp_w2", {"env": {"A": "1"}}, {"mtp_w2", "mtp_w2.deploy"}),
        ("arms/mtp_w2", {"description": "prose"}, set()),
        ("arms/mtp_w2", {"title": "shown in figures"}, ANALYSED),
        ("profiles/p", {"window_s": 2}, ARM_KEYS),
        ("profiles/p", {"blocks": 3, "description": "more repeats"}, set()),
        ("profiles/p", {"only": {"mtp_w2": [1]}}, {"mtp_w2"}),
        ("profiles/p", {"lossless_prompts": 5}, {f"{a}.deploy" for a in ARM_KEYS}),
        ("profiles/p", {"targets": {"ttft_s": 1.0}}, {"derive"}),
        ("workloads/w", {"think_factor": 1.0}, ARM_KEYS),
        ("models/m", {"context_tokens": 1024}, ARM_KEYS | {f"{a}.deploy" for a in ARM_KEYS}),
        ("models/m", {"mtp": {"algorithm": "NEXTN"}}, {"mtp_w2", "mtp_w2.deploy"}),
        ("models/m", {"weights": "a phrase"}, set()),
    ],
)
def test_a_parameter_costs_what_depends_on_it(checkout, name, fields, expected):
    before = now()
    edit(checkout, name, **fields)
    assert changed(before) - {"90_note"} == expected


def test_weights_trace_and_engine_version_cost_their_arms(checkout):
    before = now()
    (checkout / "layer" / "model.safetensors").write_bytes(b"layer")
    assert changed(before) == {"mtp_w2", "mtp_w2.deploy"}
    before = now()
    (checkout / "trace.jsonl").write_text('{"more": 1}\n')
    assert changed(before) == ARM_KEYS
    before = now()
    lock = checkout / "requirements" / "cpu.lock"
    lock.write_text("torch==1.0\npandas==2.0\n")
    assert changed(before) == set()
    lock.write_text("torch==2.0\npandas==2.0\n")
    assert changed(before) == ARM_KEYS | {f"{a}.deploy" for a in ARM_KEYS}


def test_only_code_cells_of_the_measuring_notebooks_count(checkout):
    before = now()
    save(checkout, "20_sweep", ["x = 1"], outputs=[1], execution_count=4, prose="other words")
    assert changed(before) == set()
    save(checkout, "20_sweep", ["x = 2"])
    assert changed(before) == ARM_KEYS
    before = now()
    save(checkout, "10_deploy", ["x = 2"])
    assert changed(before) == {f"{a}.deploy" for a in ARM_KEYS}
    before = now()
    save(checkout, "90_note", ["x = 1"], prose="the note's prose is part of it")
    assert changed(before) == {"90_note"}


def test_comments_docstrings_and_layout_do_not_count():
    plain = "def f(a):\n    return a + 1\n"
    dressed = '"""Module."""\n\n\ndef f(\n    a,  # why\n):\n    """Doc."""\n    return (a + 1)\n'
    assert digest.python_digest(plain) == digest.python_digest(dressed)
    assert digest.python_digest(plain) != digest.python_digest(plain.replace("1", "2"))


def test_c_comments_do_not_count(tmp_path):
    a, b, c = (tmp_path / f"{n}.c" for n in "abc")
    a.write_text("int f(void) { return 1; }\n")
    b.write_text("/* why\n   so */ int f(void) {\n  return 1; // one\n}\n")
    c.write_text("int f(void) { return 2; }\n")
    assert digest.file_digest(a) == digest.file_digest(b) != digest.file_digest(c)


@pytest.mark.parametrize("kept", [None, "no JSON", "[1]", "{}"])
def test_parsed_sources_are_remembered_by_their_bytes(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("KVTOP_CACHE", str(tmp_path))
    if kept is not None:
        (tmp_path / "parsed_sources.json").write_text(kept)
    digest._parsed.cache_clear()
    first, parsed = digest.sources(["terms", "pace"]), []
    monkeypatch.setattr(digest, "python_digest", parsed.append)  # nothing is parsed again
    digest._parsed.cache_clear()
    assert digest.sources(["terms", "pace"]) == first and not parsed
    digest._parsed.cache_clear()
    digest.sources(["terms", "paths"])
    assert len(parsed) == 1 and "def repo_root" in parsed[0]
    digest._parsed.cache_clear()


def test_analysis_code_is_in_no_measurement_and_the_plug_in_is():
    measured = digest.sources(keys.MEASURES, keys.NOT_MEASURED)
    assert not [f for f in measured if f.startswith(("metrics", "figures", "note", "tables"))]
    for wanted in ("engine/command.py", "replay/lanes.py", "trace/model.py", "block.py"):
        assert wanted in measured
    assert [f for f in measured if f.endswith(".c")] and [f for f in measured if "cpu_site" in f]
    assert not [f for f in measured if "bare_" in f or "trace/record" in f]


def test_key_files_are_written_only_when_they_change(checkout):
    run = checkout / "run"
    assert keys.update(params.load_profile("p"), run) == {}
    times = {f: f.stat().st_mtime_ns for f in (run / "keys").iterdir()}
    assert keys.update(params.load_profile("p"), run) == {}
    assert times == {f: f.stat().st_mtime_ns for f in (run / "keys").iterdir()}
    edit(checkout, "arms/mtp_w2", env={"A": "1"})
    reasons = keys.update(params.load_profile("p"), run)
    assert reasons["mtp_w2"] == ["arm (env)"]
    assert "baseline" not in reasons

"""The whole path on a real engine: deploy, sweep, analyse, note; then nothing is left to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kvtop_lib.params import load_profile

ROOT = Path(__file__).parents[2]


def make(outputs: Path) -> str:
    """`make reproduce` of the smallest profile with this Python; what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", "reproduce", "PROFILE=test", f"PY={sys.executable}", "READY=Makefile"]
    done = subprocess.run(
        command, cwd=ROOT, env=env | {"KVTOP_OUTPUTS": str(outputs)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_from_parameters_to_the_note(tmp_path):
    profile = load_profile("test")
    said = make(tmp_path)
    run = tmp_path / "runs" / "test"
    lines = [json.loads(x) for x in (run / "results.jsonl").read_text().splitlines()]
    measured = {(x["arm"], x["block"], x["c"]) for x in lines}
    blocks = range(1, profile.blocks + 1)
    assert measured == {(a, b, c) for a in profile.arms for b in blocks for c in profile.loads}
    assert {x["status"] for x in lines} <= {"ok", "invalid"}, [x["reason"] for x in lines]
    assert all(x["reason"] for x in lines if x["status"] == "invalid")
    for name in ("token_counts", "tokens", "prefix_hits"):  # true on a loaded machine too
        assert all(x["audits"][name]["ok"] for x in lines), name

    probe = json.loads((run / "mtp_w2" / "deploy" / "deployment.json").read_text())["lossless"]
    assert (probe["matched"], probe["prompts"]) == (profile.lossless_prompts,) * 2
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["arms"].keys() == set(profile.arms) and manifest["engine"]["version"]
    page = (run / "note.html").read_text(encoding="utf-8")
    assert manifest["arms"]["mtp_w2"]["title"] in page
    assert not list(tmp_path.rglob("*.partial"))
    assert "whole run" in said
    assert "nothing to do" in make(tmp_path)

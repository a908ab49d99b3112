"""How long a start takes, by the starts that a run has recorded."""

from __future__ import annotations

import json
from pathlib import Path

from kvtop_lib.pace import start_s
from kvtop_lib.plan import LAUNCH_S


def started(folder: Path, startup_s: float | None) -> None:
    folder.mkdir(parents=True)
    (folder / "deployment.json").write_text(json.dumps({"startup_s": startup_s}))


def test_a_start_is_expected_to_take_what_starts_took(tmp_path):
    assert start_s(tmp_path, "baseline") == LAUNCH_S  # the plan's, before anything was started
    started(tmp_path / "superseded" / "baseline-b1-20261130", 500.0)
    assert start_s(tmp_path, "baseline") == LAUNCH_S
    started(tmp_path / "baseline" / "deploy", 20.0)
    assert start_s(tmp_path, "baseline") == 20.0
    assert start_s(tmp_path, "mtp") == 20.0  # another arm's is a better guess than the plan's
    started(tmp_path / "mtp" / "deploy", 70.0)
    started(tmp_path / "mtp" / "b1", 30.0)
    started(tmp_path / "mtp" / "b1" / "launch2", 50.0)
    started(tmp_path / "mtp" / "b2", None)
    assert start_s(tmp_path, "mtp") == 50.0
    assert start_s(tmp_path, "baseline") == 20.0

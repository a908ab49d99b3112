"""A small project: parameter files as plain data, and an empty folder of notebooks."""

from __future__ import annotations

from pathlib import Path

import yaml

from kvtop_lib import keys


def write_project(root: Path, monkeypatch, arms: dict[str, dict], **profile) -> None:
    """Write profile ``p`` of model ``m``, workload ``w`` and these arms, and work there.

    Keys do not depend on the library's sources, whoever edits them meanwhile.
    """
    files = {
        **{f"arms/{name}": data for name, data in arms.items()},
        "models/m": {"title": "m", "checkpoint": str(root), "context_tokens": 512},
        "workloads/w": {"title": "w", "trace": str(root / "t"), "max_output_tokens": 8},
        "profiles/p": {
            "title": "p", "model": "m", "workload": "w", "arms": [*arms], "loads": [1, 4],
            "burn_in_s": 0, "warmup_s": 0, "window_s": 1, "drain_s": 0, "timeout_s": 1, **profile,
        },
    }  # fmt: skip
    for name, data in files.items():
        file = root / "params" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(data))
    (root / "notebooks").mkdir()
    monkeypatch.setenv("KVTOP_ROOT", str(root))
    monkeypatch.setattr(keys, "sources", lambda *args: {})

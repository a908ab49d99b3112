"""The steps of notebook 05: prompts, states, training; each goes on where it was interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvtop_lib.models.mtp_plan import TrainPlan
from kvtop_lib.models.mtp_prompts import training_sessions, write_sessions
from kvtop_lib.terms import KvtopError


def prepare_prompts(folder: Path, sessions: int, seed: int) -> Path:
    """Write `prompts.jsonl` unless it exists; it fixes the data of this folder."""
    path = folder / "prompts.jsonl"
    if not path.exists():
        write_sessions(path, training_sessions(sessions, seed))
    return path


def _run(module: str, arguments: list[str]) -> subprocess.Popen:
    """Start a module of this package at low priority with one thread."""
    command = [sys.executable, "-m", f"kvtop_lib.models.{module}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, preexec_fn=lambda: os.nice(5))


def _wait(running: list[subprocess.Popen], what: str) -> None:
    """Wait for all; end the others when one fails or the caller is interrupted."""
    try:
        for process in running:
            if process.wait():
                raise KvtopError(f"{what} ended with status {process.returncode}; see its output.")
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()


def extract_states(
    model: Path, prompts: Path, *, minutes: float, processes: int = 2, slots: int = 64
) -> Path:
    """Let the trunk answer the sessions for at most `minutes`; returns the folder of shards.

    Raises
    ------
    KvtopError
        A process failed.
    """
    out = prompts.with_name("states")
    if minutes > 0:
        common = ["--model", str(model), "--prompts", str(prompts), "--out", str(out)]
        common += ["--slots", str(slots), "--minutes", str(minutes)]
        parts = [f"{i}/{processes}" for i in range(processes)]
        _wait([_run("mtp_extract", [*common, "--part", p]) for p in parts], "Extraction")
    return out


def train_layer(model: Path, states: Path, plan: TrainPlan) -> Path:
    """Train in a process of its own; returns the folder of checkpoints and curve."""
    out = states.with_name("run")
    arguments = ["--model", str(model), "--states", str(states), "--out", str(out)]
    arguments += ["--train-tokens", str(plan.train_tokens), "--seed", str(plan.seed)]
    arguments += ["--processes", str(plan.processes)]
    _wait([_run("train_mtp", arguments)], "Training")
    return out

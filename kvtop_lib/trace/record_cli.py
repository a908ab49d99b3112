"""The command that plans and records agent sessions: ``python -m kvtop_lib.trace.record``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvtop_lib.params import load_model
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.agent import AgentShape, plan_sessions
from kvtop_lib.trace.agent_tasks import AgentTasks
from kvtop_lib.trace.card import card
from kvtop_lib.trace.corpus import Corpus, repository_corpus
from kvtop_lib.trace.record import RecordLimits, record
from kvtop_lib.trace.served import served_engine

SPARE = 1.5  # planned sessions per recorded one; some are given up


def record_agent(
    url: Annotated[str, typer.Option(help="An OpenAI-compatible server.")],
    out: Annotated[Path, typer.Option(help="The trace file to write.")],
    model: Annotated[str, typer.Option(help="Id of the served model (params/models).")],
    name: Annotated[str, typer.Option(help="Name of the trace.")] = "agent",
    sessions: Annotated[int, typer.Option(help="How many sessions.")] = 260,
    seed: Annotated[int, typer.Option(help="Seed of the plan.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Sessions at a time.")] = 32,
    max_output_tokens: Annotated[int, typer.Option(help="Cap of an answer.")] = 100,
) -> None:
    """Record an agent trace: tasks over this repository's files, answered by a served model."""
    corpus, tasks = repository_corpus(), AgentTasks.load()
    shape = AgentShape(spare_turns=4)
    plans = plan_sessions(
        corpus, tasks, sessions=round(sessions * SPARE), seed=seed, shape=shape, prefix=name
    )
    recorded_with = {
        "model": checkpoint(model),
        "engine": served_engine(url),
        "plan": {"sessions": sessions, "seed": seed, "corpus_sha256": corpus_sha256(corpus)},
        "concurrency": concurrency,
    }
    columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("", total=sessions)
        trace = record(
            url,
            plans,
            out,
            name=name,
            sessions=sessions,
            concurrency=concurrency,
            limits=RecordLimits(max_output_tokens=max_output_tokens),
            recorded_with=recorded_with,
            on_progress=lambda done: bar.update(task, completed=done),
        )
    print(card(trace))


def checkpoint(model: str) -> dict[str, Any]:
    """Id, description of the weights, and SHA-256 of the checkpoint's weight and config files."""
    params = load_model(model)
    digest = hashlib.sha256()
    for file in sorted([*params.path.glob("*.safetensors"), params.path / "config.json"]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return {"id": params.id, "weights": params.weights, "checkpoint_sha256": digest.hexdigest()}


def corpus_sha256(corpus: Corpus) -> str:
    """SHA-256 over paths and texts of the files that the excerpts come from."""
    return hashlib.sha256(json.dumps(corpus).encode()).hexdigest()


def main() -> None:
    """Run the command; a fault is one sentence and exit status 1."""
    try:
        typer.run(record_agent)
    except KvtopError as fault:
        raise SystemExit(str(fault)) from None

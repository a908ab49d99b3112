"""The command that plans and records agent sessions: ``python -m kvtop_lib.trace.record``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from kvtop_lib.params import load_model
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.agent import AgentShape, plan_sessions
from kvtop_lib.trace.agent_tasks import AgentTasks
from kvtop_lib.trace.card import card
from kvtop_lib.trace.corpus import Corpus, commit_id, repository_corpus
from kvtop_lib.trace.record import RecordLimits, record
from kvtop_lib.trace.served import served_engine

TEMPLATE_TOKENS = 5  # that a chat template puts around a message
SPARE_SESSIONS, SPARE_TURNS = 1.6, 4  # planned beyond what is wanted, for answers taken back


def record_agent(
    url: Annotated[str, typer.Option(help="An OpenAI-compatible server.")],
    out: Annotated[Path, typer.Option(help="The trace file to write.")],
    model: Annotated[str, typer.Option(help="Id of the served model (params/models).")],
    name: Annotated[str, typer.Option(help="Name of the trace.")] = "agent",
    sessions: Annotated[int, typer.Option(help="How many sessions.")] = 560,
    seed: Annotated[int, typer.Option(help="Seed of the plan.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Sessions at a time.")] = 32,
    commit: Annotated[str, typer.Option(help="Commit whose files are read.")] = "HEAD",
    turns: Annotated[tuple[int, int], typer.Option(help="Fewest and most turns.")] = (3, 7),
    max_output_tokens: Annotated[int, typer.Option(help="Cap of an answer.")] = 100,
    keep_loops: Annotated[bool, typer.Option(help="Do not take loops back.")] = False,
) -> None:
    """Record an agent trace: tasks over this repository's files, answered by a served model."""
    commit = commit_id(commit)
    corpus, tasks = repository_corpus(commit=commit), AgentTasks.load()
    spare_turns = 0 if keep_loops else SPARE_TURNS
    plans = plan_sessions(
        corpus,
        tasks,
        sessions=sessions if keep_loops else round(sessions * SPARE_SESSIONS),
        seed=seed,
        shape=AgentShape(turns=turns, spare_turns=spare_turns),
        prefix=name,
        count_tokens=token_counter(model),
    )
    recorded_with = {
        "model": checkpoint(model),
        "engine": served_engine(url),
        "plan": {"seed": seed, "commit": commit, "corpus_sha256": corpus_sha256(corpus)},
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
            limits=RecordLimits(
                max_output_tokens=max_output_tokens, min_turns=turns[0], take_back=not keep_loops
            ),
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


def token_counter(model: str) -> Callable[[str], int]:
    """Counts the tokens of a chat message with the model's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(load_model(model).path / "tokenizer.json"))
    return lambda text: TEMPLATE_TOKENS + len(tokenizer.encode(text, add_special_tokens=False).ids)


def corpus_sha256(corpus: Corpus) -> str:
    """SHA-256 over paths and texts of the files that the excerpts come from."""
    return hashlib.sha256(json.dumps(corpus).encode()).hexdigest()


def main() -> None:
    """Run the command; a fault is one sentence and exit status 1."""
    try:
        typer.run(record_agent)
    except KvtopError as fault:
        raise SystemExit(str(fault)) from None

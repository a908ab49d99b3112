"""Sessions that the trunk answers or reads to make training data: agent work, other talk, text.

Agent sessions have the shape of `builtin:agent` (`kvtop_lib.trace.agent`), with other tasks,
other asks and other files. Whole tasks are held out, and held-out sessions read files that no
training session reads; other talk holds out both its questions and its topics.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from kvtop_lib.models.mtp_corpus import package_files, sample_corpus
from kvtop_lib.paths import embedded_dir
from kvtop_lib.trace.agent import plan_sessions
from kvtop_lib.trace.agent_tasks import AgentTasks

Messages = tuple[dict[str, str], ...]
SESSIONS_PER_CORPUS = 40  # sessions planned over one draw of files
FILES_PER_CORPUS = 40
AGENT_OUTPUT_TOKENS, OTHER_OUTPUT_TOKENS = 100, 160
READING_CHARACTERS = 2200  # about 700 tokens of code or prose
HELDOUT_EVERY = 12  # one session in so many is held out


@dataclass(frozen=True)
class TrainingSession:
    """What the user says, turn by turn; the answers come from the trunk."""

    id: str
    domain: str  # "agent", "other" or "reading"
    task: str
    heldout: bool
    max_output_tokens: int  # per turn
    turns: tuple[Messages, ...]


def load_words(path: Path | None = None) -> dict:
    """The word lists of `training_words.yaml`."""
    path = path or embedded_dir() / "smollm2-mtp" / "training_words.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def agent_sessions(words: dict, seed: int, *, heldout: bool) -> Iterator[TrainingSession]:
    """Endless agent sessions; five of six under the system prompt of `builtin:agent`."""
    files = package_files()
    served = AgentTasks.load().system
    tasks = words["heldout_tasks" if heldout else "tasks"]
    part = "heldout" if heldout else "train"
    for batch in range(10**9):
        rng = random.Random(f"{part}/agent/{seed}/{batch}")
        corpus = sample_corpus(files, FILES_PER_CORPUS, rng, heldout=heldout)
        system = served if batch % 6 else rng.choice(words["systems"])
        plans = plan_sessions(
            corpus,
            AgentTasks(system, tasks, tuple(words["asks"])),
            sessions=SESSIONS_PER_CORPUS,
            seed=rng.randrange(2**31),
            prefix=f"agent-{part}-{seed}-{batch:03d}",
        )
        for plan in plans:
            turns = tuple(turn.messages for turn in plan.turns)
            yield TrainingSession(plan.id, "agent", plan.task, heldout, AGENT_OUTPUT_TOKENS, turns)


def other_sessions(words: dict, seed: int, *, heldout: bool) -> Iterator[TrainingSession]:
    """Endless sessions of one to three turns: questions, texts, small programs, summaries."""
    files = package_files()
    part, prefix = ("heldout", "heldout_") if heldout else ("train", "")
    rng = random.Random(f"{part}/other/{seed}")
    topics = words[f"{prefix}topics"]
    used = set()
    for i in range(10**9):
        if i % SESSIONS_PER_CORPUS == 0:
            corpus = sample_corpus(files, FILES_PER_CORPUS, rng, heldout=heldout)
        kind = rng.choices(("question", "program", "summary"), (6, 2, 2))[0]
        if kind == "question":
            topic, other = rng.sample(topics, 2)
            task = rng.choice(words[f"{prefix}questions"])
            text = task.format(topic=topic, other=other)
        elif kind == "program":
            task = rng.choice(words[f"{prefix}programs"])
            text = task.format(job=rng.choice(words[f"{prefix}jobs"]))
        else:
            task = "Summarize the following text."
            text = f"{task}\n\n{_paragraph(corpus, rng)}"
        opening: Messages = ({"role": "user", "content": text},)
        if rng.random() < 0.3:
            system = rng.choice(("You are a helpful assistant.", "Answer briefly.", "Be precise."))
            opening = ({"role": "system", "content": system}, *opening)
        later = rng.sample(words["follow_ups"], rng.choice((0, 1, 1, 2)))
        turns = (opening, *(({"role": "user", "content": ask},) for ask in later))
        key = json.dumps(turns)
        if key not in used:
            used.add(key)
            name = f"other-{part}-{seed}-{i:05d}"
            yield TrainingSession(name, "other", task, heldout, OTHER_OUTPUT_TOKENS, turns)


def _paragraph(corpus: list[tuple[str, str]], rng: random.Random) -> str:
    """A paragraph of prose of 200-700 characters, or the start of a file when there is none."""
    for _ in range(200):
        text = rng.choice(corpus)[1]
        paragraph = " ".join(rng.choice(text.split("\n\n")).split())
        letters = sum(c.isalpha() or c == " " for c in paragraph)
        if 200 <= len(paragraph) <= 700 and letters > 0.92 * len(paragraph):
            return paragraph
    return corpus[0][1][:400]


def reading_sessions(words: dict, seed: int) -> Iterator[TrainingSession]:
    """Endless single turns that show the trunk a piece of a file and ask for nothing.

    Its states on text cost a prefill only, a third of the price of an answer; they are for
    training alone.
    """
    files = package_files()
    for batch in range(10**9):
        rng = random.Random(f"reading/{seed}/{batch}")
        corpus = sample_corpus(files, FILES_PER_CORPUS, rng, heldout=False)
        for i, (name, text) in enumerate(corpus):
            start = rng.randrange(max(1, len(text) - READING_CHARACTERS))
            piece = text[start : start + READING_CHARACTERS]
            opening: Messages = ({"role": "user", "content": f"{name}\n\n{piece}"},)
            name = f"reading-{seed}-{batch:04d}-{i:02d}"
            yield TrainingSession(name, "reading", "Read.", False, 1, (opening,))


def training_sessions(
    count: int, seed: int, other_share: float = 0.3, reading_share: float = 0.4
) -> list[TrainingSession]:
    """`count` sessions in an order of which every beginning is a valid, mixed data set.

    Parameters
    ----------
    other_share : float
        Share of answered sessions that are other talk (they are shorter, so their share of tokens
        is less).
    reading_share : float
        Share of sessions that are read only.
    """
    words = load_words()
    parts = {
        (domain, heldout): make(words, seed, heldout=heldout)
        for domain, make in (("agent", agent_sessions), ("other", other_sessions))
        for heldout in (False, True)
    }
    reading = reading_sessions(words, seed)
    rng = random.Random(f"order/{seed}")
    sessions, answered = [], 0
    while len(sessions) < count:
        if rng.random() < reading_share:
            sessions.append(next(reading))
        else:
            domain = "other" if rng.random() < other_share else "agent"
            sessions.append(next(parts[domain, answered % HELDOUT_EVERY == 0]))
            answered += 1
    return sessions


def write_sessions(path: Path, sessions: list[TrainingSession]) -> None:
    """Write one session per line (JSON)."""
    lines = [json.dumps(asdict(session), ensure_ascii=False) for session in sessions]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_sessions(path: Path) -> list[TrainingSession]:
    """Read what `write_sessions` wrote."""
    lines = path.read_text(encoding="utf-8").splitlines()
    records = (json.loads(line) for line in lines)
    return [
        TrainingSession(**{**r, "turns": tuple(tuple(turn) for turn in r["turns"])})
        for r in records
    ]

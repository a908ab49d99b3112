"""Plans of agent sessions: what the user and the tools say, before a model has answered.

The shape is that of published coding-agent traces, scaled down so that prefill does not drown
decode on two cores: 3-7 turns; 60-150 new prompt tokens per turn, log-normal; log-normal think
and tool times. The published medians are 713 new prompt tokens and 9 s of tool time per turn
(WEKA coding sessions) and 12 calls per episode (tau-bench airline): tokens are scaled by about
1/7 and times by about 1/9.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.agent_tasks import AgentTasks
from kvtop_lib.trace.corpus import Corpus, Excerpt, draw_excerpt

CHARS_PER_TOKEN = 3.6  # English text and code, without a tokenizer
MIN_EXCERPT_TOKENS = 25
HEADING_TOKENS = 15  # of the line that names file and lines

Messages = tuple[dict[str, str], ...]


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution, clipped to [low, high]."""

    median: float
    sigma: float  # standard deviation of the logarithm
    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        """One value."""
        value = self.median * math.exp(rng.gauss(0.0, self.sigma))
        return min(self.high, max(self.low, value))


@dataclass(frozen=True)
class AgentShape:
    """Sizes and times of planned sessions."""

    turns: tuple[int, int] = (3, 7)
    new_tokens: LogNormal = LogNormal(100, 0.35, 60, 150)  # new prompt tokens per turn
    think_s: LogNormal = LogNormal(1.0, 1.0, 0.1, 20.0)  # before each turn but the first
    output_tokens: int = 60  # expected per turn, to stay within session_tokens
    session_tokens: int = 800
    spare_turns: int = 0  # more than wanted, for answers that the recording takes back


@dataclass(frozen=True)
class PlannedTurn:
    """New messages of a turn, and the time before it is sent."""

    messages: Messages
    think_s: float


@dataclass(frozen=True)
class SessionPlan:
    """A session whose answers are still to be recorded."""

    id: str
    task: str
    turns: tuple[PlannedTurn, ...]
    keep: int  # turns wanted; the others are spare


def estimate_tokens(text: str) -> int:
    """Tokens of one message without a tokenizer, with 5 for the chat template."""
    return 5 + round(len(text) / CHARS_PER_TOKEN)


def plan_sessions(
    corpus: Corpus,
    tasks: AgentTasks,
    *,
    sessions: int,
    seed: int,
    shape: AgentShape = AgentShape(),
    prefix: str = "agent",
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[SessionPlan]:
    """Plan ``sessions`` distinct agent sessions, the same ones for the same arguments.

    No two sessions open with the same pair of task and file, and no excerpt is read twice, so
    that two sessions share the system prompt and at worst the first words of a task.

    Raises
    ------
    KvtopError
        Tasks and corpus are too small for so many distinct sessions.
    """
    if len(corpus) * len(tasks.tasks) < sessions:
        raise KvtopError(
            f"{len(tasks.tasks)} tasks and {len(corpus)} files make fewer distinct sessions than "
            f"the {sessions} asked for; ask for fewer or add tasks."
        )
    planner = _Planner(dict(corpus), tasks, shape, count_tokens, random.Random(f"agent/{seed}"))
    return [
        planner.session(f"{prefix}-{i:04d}", task, path)
        for i, (task, path) in enumerate(planner.openings(sessions), 1)
    ]


@dataclass
class _Planner:
    files: dict[str, str]
    tasks: AgentTasks
    shape: AgentShape
    count_tokens: Callable[[str], int]
    rng: random.Random
    seen: set[str] = field(default_factory=set)

    def openings(self, sessions: int) -> Iterator[tuple[str, str]]:
        """Distinct pairs of task and file: tasks in turn, each with its own order of files."""
        ids, paths = list(self.tasks.tasks), list(self.files)
        orders = {task: self.rng.sample(paths, len(paths)) for task in ids}
        for i in range(sessions):
            if i % len(ids) == 0:
                self.rng.shuffle(ids)
            task = ids[i % len(ids)]
            yield task, orders[task][i // len(ids)]

    def session(self, id: str, task: str, path: str) -> SessionPlan:
        """Turn 0 states the task and shows its file; later turns read on, there or elsewhere."""
        shape, text = self.shape, self.tasks.tasks[task].replace("{path}", path)
        wanted = self.rng.randint(*shape.turns)
        asks = self.rng.sample(self.tasks.asks, len(self.tasks.asks))
        turns: list[PlannedTurn] = []
        tokens = keep = 0
        for k in range(wanted + shape.spare_turns):
            files = {path: self.files[path]} if k == 1 else self.files
            messages = self.read(files, asks[k % len(asks)]) if k else self.opening(text, path)
            tokens += sum(self.count_tokens(m["content"]) for m in messages) + shape.output_tokens
            if k < wanted and tokens <= shape.session_tokens:
                keep = k + 1
            elif len(turns) == keep + shape.spare_turns:
                break
            turns.append(PlannedTurn(messages, self.think_s() if k else 0.0))
        return SessionPlan(id, task, tuple(turns), keep)

    def think_s(self) -> float:
        """Time of thought or of a tool."""
        return round(self.shape.think_s.draw(self.rng), 2)

    def opening(self, task: str, path: str) -> Messages:
        """System prompt, and the task with a part of its file."""
        closing = self.rng.choice(self.tasks.closings) if self.tasks.closings else ""
        spent = sum(self.count_tokens(text) for text in (self.tasks.system, task, closing))
        excerpt = self.excerpt({path: self.files[path]}, spent)
        content = "\n\n".join(part for part in (task, excerpt.text, closing) if part)
        return (
            {"role": "system", "content": self.tasks.system},
            {"role": "user", "content": content},
        )

    def read(self, files: dict[str, str], ask: str) -> Messages:
        """A tool's result, an excerpt of one of ``files``, and what the user asks about it."""
        excerpt = self.excerpt(files, self.count_tokens(ask) + HEADING_TOKENS)
        heading = f"{excerpt.path}, lines {excerpt.first_line}-{excerpt.last_line}:"
        return ({"role": "user", "content": f"{heading}\n\n{excerpt.text}\n\n{ask}"},)

    def excerpt(self, files: dict[str, str], spent_tokens: int) -> Excerpt:
        """An excerpt that nobody has read yet, which fills the turn up to its drawn size."""
        tokens = max(MIN_EXCERPT_TOKENS, self.shape.new_tokens.draw(self.rng) - spent_tokens)
        for attempt in range(50):
            pool = files if attempt < 10 else self.files
            drawn = draw_excerpt(pool, round(tokens * CHARS_PER_TOKEN), self.rng)
            found = replace(drawn, text=self.fitted(drawn.text, tokens))
            if found.text and found.text not in self.seen:
                self.seen.add(found.text)
                return found
        raise KvtopError("The corpus is too small for so many different excerpts; add files to it.")

    def fitted(self, text: str, tokens: float) -> str:
        """The beginning of ``text`` that has at most ``tokens`` tokens: whole lines, at least one.

        A first line that is too long is cut.
        """
        lines = text.split("\n")
        while (over := self.count_tokens("\n".join(lines)) - tokens) > 0 and len(lines) > 1:
            lines.pop()
        kept = "\n".join(lines).rstrip()
        return kept if over <= 0 else kept[: -round(over * CHARS_PER_TOKEN)].rstrip()

"""Hidden states of answered sessions: what the draft layer is trained on, in resumable shards."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


@dataclass(frozen=True)
class Segment:
    """Where a session lies in a shard."""

    id: str
    domain: str
    task: str
    heldout: bool
    start: int
    length: int  # positions


@dataclass(frozen=True)
class States:
    """Positions of one or more sessions, concatenated.

    Attributes
    ----------
    tokens : int64, shape (n,)
        The sessions' tokens, prompts and answers.
    greedy : int64, shape (n,)
        The trunk's argmax after each position (over its whole vocabulary).
    output : bool, shape (n,)
        The token at this position was generated, in an answer that does not end in a loop.
    hidden : bfloat16, shape (n, hidden)
        The trunk's hidden state at each position, after the final norm.
    segments : tuple of Segment
    """

    tokens: torch.Tensor
    greedy: torch.Tensor
    output: torch.Tensor
    hidden: torch.Tensor
    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def save(self, path: Path) -> None:
        """Write a shard; complete or absent, never half."""
        tensors = {
            "tokens": self.tokens.to(torch.int32),
            "greedy": self.greedy.to(torch.int32),
            "output": self.output.to(torch.uint8),
            "hidden": self.hidden.bfloat16(),
        }
        segments = json.dumps([asdict(segment) for segment in self.segments])
        partial = path.with_name(f".{path.name}.partial")
        save_file(tensors, partial, metadata={"segments": segments})
        partial.rename(path)

    @classmethod
    def load(cls, path: Path) -> States:
        """Read a shard."""
        with safe_open(path, framework="pt") as shard:
            segments = json.loads(shard.metadata()["segments"])
            return cls(
                shard.get_tensor("tokens").long(),
                shard.get_tensor("greedy").long(),
                shard.get_tensor("output").bool(),
                shard.get_tensor("hidden"),
                tuple(Segment(**segment) for segment in segments),
            )


def concatenate(parts: Iterable[States]) -> States:
    """Join states; segments move with their positions."""
    parts = list(parts)
    segments, start = [], 0
    for part in parts:
        segments += [Segment(**{**asdict(s), "start": s.start + start}) for s in part.segments]
        start += len(part)
    names = ("tokens", "greedy", "output", "hidden")
    joined = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    return States(*joined, tuple(segments))


def shards(folder: Path) -> list[Path]:
    """Complete shards of a folder, in order of their names."""
    return sorted(Path(folder).glob("states-*.safetensors"))


def stored_segments(folder: Path) -> Iterator[Segment]:
    """Sessions that a folder holds, in order; positions count from the start of their shard."""
    for path in shards(folder):
        with safe_open(path, framework="pt") as shard:
            yield from (Segment(**s) for s in json.loads(shard.metadata()["segments"]))


def take(states: States, segments: Iterable[Segment]) -> States:
    """A copy of the states of some segments."""
    parts = []
    for s in segments:
        rows = slice(s.start, s.start + s.length)
        tensors = (states.tokens, states.greedy, states.output, states.hidden)
        parts.append(States(*(t[rows] for t in tensors), (replace(s, start=0),)))
    return concatenate(parts)


def load_states(folder: Path, ids: Collection[str] | None = None) -> States:
    """Sessions of a folder as one, in the order of the shards; all, or those of the given ids.

    Only what is asked for is held in memory.
    """
    wanted = None if ids is None else set(ids)
    parts = []
    for path in shards(folder):
        part = States.load(path)
        segments = [s for s in part.segments if wanted is None or s.id in wanted]
        if segments:
            parts.append(take(part, segments))
    return concatenate(parts)

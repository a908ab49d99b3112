"""The words of an agent's user: system prompt, tasks, and what is asked about a read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from kvtop_lib.paths import embedded_dir
from kvtop_lib.terms import KvtopError


@dataclass(frozen=True)
class AgentTasks:
    """A task file.

    ``tasks`` maps an id to the user's first message, in which ``{path}`` stands for a file;
    ``asks`` are the short requests that follow an excerpt; ``closings``, if any, end the first
    message, after its excerpt.
    """

    system: str
    tasks: dict[str, str]
    asks: tuple[str, ...]
    closings: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | Path | None = None) -> AgentTasks:
        """Read a task file (YAML with the keys of this class); default: those of builtin:agent.

        Raises
        ------
        KvtopError
            A key is missing or a task does not name ``{path}``.
        """
        path = Path(path or embedded_dir() / "agent" / "tasks.yaml")
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        missing = [key for key in ("system", "tasks", "asks") if key not in raw]
        if missing:
            raise KvtopError(f"{path} has no {missing[0]!r}; add it.")
        pathless = [key for key, text in raw["tasks"].items() if "{path}" not in text]
        if pathless:
            raise KvtopError(f"{path}: task {pathless[0]!r} does not name {{path}}; add it.")
        closings = tuple(raw.get("closings", ()))
        return cls(raw["system"], dict(raw["tasks"]), tuple(raw["asks"]), closings)

"""Sessions of a recording that is not finished yet, kept on disk so that it can go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session, Trace
from kvtop_lib.trace.sessions_jsonl import read_sessions


@dataclass
class Partial:
    """A session file that grows: the header, then sessions in the order in which they ended."""

    path: Path
    sessions: dict[str, Session] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, head: Trace) -> Partial:
        """Go on with ``path`` when it is there, else begin it with the header of ``head``.

        Raises
        ------
        KvtopError
            The file was recorded with another name or other settings.
        """
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head.lines()[0] + "\n", encoding="utf-8")
            return cls(path)
        whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
        if torn:  # the writer was killed in the middle of a line
            path.write_text(whole + "\n", encoding="utf-8")
        known = read_sessions(path)
        if (known.name, known.recorded_with) != (head.name, head.recorded_with):
            raise KvtopError(
                f"{path} was recorded with other settings; delete it to record anew, "
                "or give the command that began it."
            )
        return cls(path, {s.id: s for s in known.sessions})

    def add(self, session: Session) -> None:
        """Keep a finished session."""
        self.sessions[session.id] = session
        line = json.dumps(session.to_dict(), ensure_ascii=False, separators=(",", ":"))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

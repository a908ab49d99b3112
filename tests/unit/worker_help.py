"""What further client processes import in tests: little, so that they begin soon."""

from __future__ import annotations

import sys
from pathlib import Path

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session


class BrokenElsewhere(Session):
    """A session whose second prompt cannot be written in a further process."""

    def request_messages(self, k):
        if k and Path(sys.argv[0]).name == "worker.py":
            raise KvtopError("no second prompt")
        return super().request_messages(k)


class Writer:
    """Writes text of blocks."""

    def prompt(self, session: Session, k: int) -> str:
        return f"ask {int(session.id[1:])}-{k}"

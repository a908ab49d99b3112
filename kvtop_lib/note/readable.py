"""A run that can be set into a page: a manifest that is one, and texts that can be printed."""

from __future__ import annotations

from typing import Any

from kvtop_lib.figures.static import printable
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError


def checked_manifest(run: Run) -> dict[str, Any]:
    """The manifest, whose arms are objects with titles that are texts.

    Raises
    ------
    KvtopError
        When it is none.
    """
    found = run.manifest
    arms = found.get("arms") or {} if isinstance(found, dict) else None
    if isinstance(arms, dict):
        arms = [{"id": name, **a} if isinstance(a, dict) else a for name, a in arms.items()]
    if not isinstance(arms, list) or not all(
        isinstance(a, dict) and isinstance(a.get("id"), str)
        and isinstance(a.get("title") or "", str)
        for a in arms
    ):  # fmt: skip
        raise KvtopError(
            f"{run.path / 'manifest.json'} is no manifest: it must be an object whose arms are "
            "objects; measure again"
        )
    return found


class ReadableRun(Run):
    """A run whose texts hold no character that a page or a picture cannot."""

    @property
    def manifest(self) -> dict:
        """As `kvtop_lib.store.Run.manifest`."""
        return printable(super().manifest)

    def lines(self) -> list[dict]:
        """As `kvtop_lib.store.Run.lines`."""
        return printable(super().lines())

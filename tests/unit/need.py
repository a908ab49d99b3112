"""A tool that a test needs: its lack is a failure in CI and a skip, with the reason, elsewhere."""

from __future__ import annotations

import os

import pytest


def need(found: object, why: str) -> None:
    """Go on when the tool was found."""
    if not found:
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)

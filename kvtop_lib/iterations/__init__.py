"""Iterations by arm and load: as clients saw them, and as the server's recorder timed them."""

from kvtop_lib.iterations.clients import GROUP, by_load, by_request
from kvtop_lib.iterations.timed import (
    ORDER,
    PART_GROUPS,
    STEPS,
    over_time,
    recorded,
    split,
    timeline,
    work,
)

__all__ = [
    "GROUP",
    "ORDER",
    "PART_GROUPS",
    "STEPS",
    "by_load",
    "by_request",
    "over_time",
    "recorded",
    "split",
    "timeline",
    "work",
]

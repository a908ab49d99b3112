"""The words of the domain that are stored in records, each with one meaning."""

from __future__ import annotations

from typing import Final, Literal, get_args

RequestStatus = Literal["ok", "http_error", "stream_error", "truncated", "timeout", "cancelled"]
"""How one request ended; every request has exactly one."""

PointStatus = Literal["ok", "failed", "aborted", "invalid"]
"""How one point ended; only ``ok`` carries metrics, ``invalid`` means that an audit failed."""

Phase = Literal["burn_in", "warmup", "window", "drain"]
"""When a request was sent; only traffic of the window enters estimates."""

DraftMethod = Literal["none", "mtp", "ngram", "mtp_ngram"]
"""Who proposes draft tokens: nobody, the model's MTP layer, n-gram look-up, or the last two:
n-grams where the last tokens of a request occurred before, MTP elsewhere."""

REQUEST_STATUSES: Final[tuple[str, ...]] = get_args(RequestStatus)
POINT_STATUSES: Final[tuple[str, ...]] = get_args(PointStatus)
PHASES: Final[tuple[str, ...]] = get_args(Phase)

DEFAULT_PROFILE: Final = "reproduce"
"""The profile that `make` takes when none is named."""

SCHEMA: Final = 1
"""Version of the record layout in a run folder."""


class KvtopError(Exception):
    """Something the user can mend; its text says in one sentence what is wrong and what to do."""

"""Values of a record, checked: what is wrong is said in words, and never by another exception."""

from __future__ import annotations

import datetime as dt
import math
from array import array
from typing import Any

MAX_TOKENS = 10**8
MAX_SECONDS = 1e10  # some sources count from 1970


class Bad(ValueError):
    """What is wrong in a record; the reader adds file and line number."""


def get(row: dict[str, Any], key: str, kind: type) -> Any:
    """The value of ``key``, which must be there and of type ``kind``; text must be encodable."""
    if key not in row:
        raise Bad(f'"{key}" is missing')
    if not isinstance(row[key], kind):
        raise Bad(f'"{key}" must be of type {kind.__name__}, not {type(row[key]).__name__}')
    return text(row[key], key) if kind is str else row[key]


def text(value: str, what: str) -> str:
    """``value`` unless it holds half a character, which no file can hold."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Bad(f'"{what}" holds half of a character (a lone surrogate)') from None
    return value


def record(row: Any, what: str = "a record") -> dict[str, Any]:
    """``row``, which must be a JSON object."""
    if not isinstance(row, dict):
        raise Bad(f"{what} must be a JSON object")
    return row


def count(row: dict[str, Any], key: str, low: int = 1) -> int:
    """A whole number from ``low`` to `MAX_TOKENS`."""
    value = get(row, key, int)
    if isinstance(value, bool) or not low <= value <= MAX_TOKENS:
        raise _no_count(key, low, value)
    return value


def _no_count(key: str, low: int, value: Any) -> Bad:
    limits = f"from {low} to {MAX_TOKENS:,}"
    return Bad(f'"{key}" must be a whole number {limits}, not {value!r:.40}')


def cell(row: dict[str, Any], key: str, low: int = 0) -> int:
    """As `count` in a CSV file."""
    value = get(row, key, str).strip()
    if not value.removesuffix(".0").isdecimal() or len(value) > 20:
        raise _no_count(key, low, value)
    return count({key: int(value.removesuffix(".0"))}, key, low)


def seconds(row: dict[str, Any], key: str, per_s: float = 1.0) -> float:
    """A time of at least 0 in seconds, stored in units of 1 / ``per_s``; 0 when it is missing."""
    value = row.get(key)
    if value is None:
        return 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < MAX_SECONDS * per_s:
        unit = {1.0: "seconds", 1000.0: "milliseconds"}[per_s]
        limits = f"from 0 to {MAX_SECONDS * per_s:,.0f}"
        raise Bad(f'"{key}" must be a number of {unit} {limits}, not {value!r:.40}')
    return float(value) / per_s if per_s != 1.0 else float(value)


def name(row: dict[str, Any], key: str) -> str:
    """An identity, text or a whole number, as text."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Bad(f'"{key}" must be text or a whole number, not {value!r:.40}')
    return text(str(value), key)


def ids(row: dict[str, Any], key: str = "hash_ids") -> array:
    """Block identities, whole numbers within 64 bits."""
    value = get(row, key, list)
    for id in value:
        if isinstance(id, bool) or not isinstance(id, int) or not -(2**63) <= id < 2**64:
            raise Bad(f'"{key}" must hold whole numbers within 64 bits, not {id!r:.40}')
    return array("q", (id if id < 2**63 else id - 2**64 for id in value))


def fit_blocks(found: array, size: int, tokens: int, what: str) -> array:
    """``found``, unless its blocks do not fit into a prompt of ``tokens`` tokens."""
    if len(found) > math.ceil(tokens / size):
        raise Bad(f"{len(found)} blocks of {size} tokens are more than {what} ({tokens})")
    return found


def moment(value: Any, key: str) -> float:
    """A date and time in ISO 8601 as seconds since 1970; without a time zone, of UTC."""
    try:
        whole, _, fraction = str(value).strip().partition(".")
        digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
        stamp = dt.datetime.fromisoformat(whole + fraction[len(digits) :])
        stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=dt.UTC)
        return stamp.timestamp() + (float(f"0.{digits[:9]}") if digits else 0.0)
    except (ValueError, OverflowError):
        raise Bad(f'"{key}" must be a date and time, not {value!r:.40}') from None

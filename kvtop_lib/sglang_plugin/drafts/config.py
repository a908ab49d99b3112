"""What the variable `KVTOP_DRAFT` asks for: a JSON object, checked when the server starts."""

import json
import os
from dataclasses import dataclass, field

VARIABLE = "KVTOP_DRAFT"
LOG_VARIABLE = "KVTOP_DRAFT_LOG"
SOURCES = ("mtp", "ngram")
POLICIES = ("fixed:<width>", "table", "goodput", "sglang")


@dataclass(frozen=True)
class DraftConfig:
    """Drafting of a server.

    Attributes
    ----------
    widths : tokens verified per request and forward that may be chosen, rising.
    policy : ``fixed:<width>``, ``table``, ``goodput``, or ``sglang`` for SGLang's own rule.
    ngram : whether requests whose last tokens occurred before draft from there.
    min_match : tokens that must have occurred before, at least.
    table : running requests -> width, valid from that number on (policy ``table``).
    """

    widths: tuple[int, ...]
    policy: str = "goodput"
    ngram: bool = False
    min_match: int = 3
    table: dict[int, int] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """Draft tokens by width, as SGLang's adaptive configuration names them."""
        return [w - 1 for w in self.widths]

    @property
    def fixed(self) -> int | None:
        """The width of policy ``fixed``."""
        head, _, width = self.policy.partition(":")
        return int(width) if head == "fixed" else None

    def adaptive_config(self) -> dict:
        """The candidates as SGLang reads them."""
        return {"1": {"candidate_steps": self.steps}}


def parse(text: str) -> DraftConfig:
    """Read the variable's value.

    Raises
    ------
    ValueError
        One sentence that says what is wrong.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{VARIABLE} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{VARIABLE} must be a JSON object, it is {text[:40]!r}")
    known = {"sources", "widths", "policy", "min_match", "table"}
    if unknown := sorted(data.keys() - known):
        raise ValueError(f"{VARIABLE}: unknown key {unknown[0]!r}, known are {sorted(known)}")
    sources = data.get("sources", ["mtp"])
    if sources not in (["mtp"], ["mtp", "ngram"]):
        raise ValueError(f'{VARIABLE}: sources must be ["mtp"] or ["mtp", "ngram"]')
    widths = data.get("widths")
    if not isinstance(widths, list) or not widths or not all(map(_is_width, widths)):
        raise ValueError(f"{VARIABLE}: widths must be a list of whole numbers from 1 to 64")
    min_match = data.get("min_match", 3)
    if not _is_width(min_match):
        raise ValueError(f"{VARIABLE}: min_match must be a whole number from 1 to 64")
    widths = tuple(sorted(set(widths)))
    policy = data.get("policy", "goodput")
    table = _table(data.get("table", {}), widths)
    _check_policy(policy, widths, table, sources)
    return DraftConfig(widths, policy, "ngram" in sources, min_match, table)


def from_environment() -> DraftConfig | None:
    """The configuration of this process; None without the variable. Raises as `parse`."""
    text = os.environ.get(VARIABLE)
    return parse(text) if text else None


def _is_width(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64


def _table(data, widths: tuple[int, ...]) -> dict[int, int]:
    fits = isinstance(data, dict) and all(
        str(b).isdigit() and int(b) > 0 and w in widths for b, w in data.items()
    )
    if not fits:
        raise ValueError(f"{VARIABLE}: table must map running requests to one of the widths")
    return {int(b): w for b, w in sorted(data.items(), key=lambda item: int(item[0]))}


def _check_policy(policy, widths, table, sources) -> None:
    name, _, width = str(policy).partition(":")
    if name == "fixed":
        if not width.isdigit() or int(width) not in widths:
            raise ValueError(f"{VARIABLE}: {policy!r} must name one of the widths {list(widths)}")
    elif policy not in POLICIES[1:]:
        raise ValueError(f"{VARIABLE}: policy must be one of {', '.join(POLICIES)}")
    if (policy == "table") != bool(table):
        raise ValueError(f"{VARIABLE}: policy 'table' needs a table, other policies take none")
    if policy == "sglang" and "ngram" in sources:
        raise ValueError(f"{VARIABLE}: SGLang's own rule knows no n-grams, choose another policy")

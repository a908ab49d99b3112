"""Where a value stands, in the grammar of `kvtop_lib.note.prose`."""

from __future__ import annotations

from kvtop_lib import tables
from kvtop_lib.note.change import Change


def listed(numbers: list[int]) -> str:
    """``L3,L27``."""
    return ",".join(f"L{n}" for n in numbers)


class Cited:
    """Addresses in the records of a run; evidence with other records overrides them."""

    origin = "results.jsonl"
    manifest_at = "manifest.json"

    def cite(self, arm: str, column: str, lines: list[int]) -> str:
        """Source of a mean over lines."""
        return f"{self.origin}#{listed(lines)}:mean({tables.FIELDS[column]})"

    def cite_ratio(self, arm: str, column: str, pairs: list[tuple[int, int]]) -> str:
        """Source of a ratio over pairs of lines."""
        where = ",".join(f"L{a}/L{b}" for a, b in pairs)
        return f"{self.origin}#{where}:ratio({tables.FIELDS[column]})"

    def cite_sum(self, field: str, lines: list[int]) -> str:
        """Source of a sum over lines."""
        return f"{self.origin}#{listed(lines)}:sum({field})"

    def cite_inverse(self, change: Change, column: str) -> str:
        """Source of the reciprocal of a change."""
        where, _, what = change.percent.source.partition("#")[2].partition(":")
        turned = ",".join("/".join(reversed(pair.split("/"))) for pair in where.split(","))
        return f"{self.origin}#{turned}:{what}"

    def cite_load(self, line: int) -> str:
        """Source of a load."""
        return f"{self.origin}#L{line}:c"

    def cite_rate(self, line: int) -> str:
        """Source of an arrival rate."""
        return f"{self.origin}#L{line}:rate"

    def cite_field(self, path: str) -> str:
        """Source of a field of the manifest."""
        return f"{self.manifest_at}#{path}"

    def cite_count(self, what: str) -> str:
        """Source of a number of points."""
        return f"{self.origin}:count({what})"

"""What the library derives from a run's records for the note, each worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pandas as pd

from kvtop_lib import decision, decomposition, tables
from kvtop_lib.note.prose import Value, quantity
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError


class Derived:
    """Tables, targets, decision and decomposition of evidence."""

    def by_load(self, column: str) -> pd.DataFrame:
        """`tables.by_load` of one column."""
        return self._table(tables.by_load, column)

    @property
    def ratios(self) -> pd.DataFrame:
        """`tables.ratios` of throughput."""
        return self._table(tables.ratios, "output_tok_s", self.reference)

    @cached_property
    def _tables(self) -> dict[tuple, pd.DataFrame]:
        return {}

    def _table(self, make: Callable[..., pd.DataFrame], *given: str) -> pd.DataFrame:
        """A table of the points, made once: a page takes most of its numbers from a few."""
        if (key := (make, *given)) not in self._tables:
            self._tables[key] = make(self.points, *given)
        return self._tables[key]

    @cached_property
    def targets(self) -> dict[str, Value] | None:
        """Latency targets by metric; None when none was set, or points were judged by others."""
        found = [
            (r["line"], limits)
            for r in self.records
            if (limits := tables.pick(r, "goodput.targets"))
        ]
        if not found or any(limits != found[0][1] for _, limits in found):
            return None
        line, limits = found[0]
        where = f"{self.origin}#L{line}:goodput.targets"
        return {k: Value(quantity(v, "s"), f"{where}.{k}", v) for k, v in limits.items()}

    @cached_property
    def decision(self) -> dict[str, Any] | None:
        """`kvtop_lib.decision.decide`, with the latency targets that decision.json names.

        None where no arm has a pair with the baseline.
        """
        if self.quoted or self.ratios.empty or not self.ratios["n"].any():
            return None
        file, named = self.run.path / "decision.json", {}
        if file.is_file():
            before = [one["target"] for one in read_json(file)["decisions"]]
            named = {t["name"]: t["limits"] for t in before if t["limits"]}
        try:
            return decision.decide(self.run, named)
        except KvtopError:  # the baseline has no point
            return None

    @cached_property
    def decomposed(self) -> pd.DataFrame:
        """`decomposition.by_load` of the points by lanes, with their pairs of lines and folders.

        ``record`` is the file that holds the factors; no row where no iterations were recorded.
        """
        results = pd.DataFrame() if self.quoted else self.run.results()
        known = "output_tok_s" in results
        points = decomposition.of_run(self.run) if known else pd.DataFrame()
        if points.empty:
            return pd.DataFrame()
        points = points[points["c"].notna() & points["output_tok_s"].notna()]
        points = points.astype({"c": int})
        base = points[points["arm"] == self.reference]
        found = decomposition.by_load(points, self.reference)
        keys = ["workload", "c", "block"]
        both = points.merge(base[[*keys, "line", "point"]], on=keys, suffixes=("", "_base"))
        pairs = {key: own for key, own in both.groupby(["arm", "c"])}
        owns = [pairs[r.arm, r.c] for r in found.itertuples()]
        return found.assign(
            lines=[_pairs(own, "line") for own in owns],
            folders=[_pairs(own, "point") for own in owns],
            record=[own["record"].iloc[0] for own in owns],
        )


def _pairs(own: pd.DataFrame, column: str) -> list[tuple[Any, Any]]:
    return list(zip(own[column], own[f"{column}_base"], strict=True))

"""The parts of a note on two runs; `92_compare.ipynb` calls them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from kvtop_lib import figures
from kvtop_lib.note import caveats, claims, head, method
from kvtop_lib.note.article import Article
from kvtop_lib.note.change import Change, verdict
from kvtop_lib.note.cite import listed
from kvtop_lib.note.compared import frames
from kvtop_lib.note.compared.differences import check, differences, shared_arms, short
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.parts import Html, Tile, definition, figure, paragraphs, section, table
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, percent, say

SIDES = ("first", "second")


class ComparedArticle:
    """The note of two runs.

    Parameters
    ----------
    first, second : Path or str
        Run folders.
    declared : sequence of str
        Groups of differences that are what is compared (`compared.differences.GROUPS`).

    Raises
    ------
    KvtopError
        When a run cannot be read, they differ undeclared, or share no point.
    """

    def __init__(self, first: Path | str, second: Path | str, declared: Sequence[str] = ()) -> None:
        self.sides = [Article.read(folder) for folder in (first, second)]
        for ev, side in zip(self.sides, SIDES, strict=True):
            ev.origin, ev.manifest_at = f"{side}/results.jsonl", f"{side}/manifest.json"
        self.found = differences(*self.sides)
        check(self.found, declared)
        self.data = frames.between(*self.sides)
        self._numbered = 0

    @property
    def first(self) -> Evidence:
        """The run that is compared with."""
        return self.sides[0]

    def _name(self, ev: Evidence) -> Value:
        return Value(ev.run.name, ev.cite_field("run"))

    def _labels(self) -> list[str]:
        return [f"{side} run: {ev.run.name}" for ev, side in zip(self.sides, SIDES, strict=True)]

    def changes(self, arm: str) -> list[Change]:
        """Second run over first, of one arm over rising load."""
        return [self._change(row) for _, row in self.data[self.data["arm"] == arm].iterrows()]

    def _change(self, row: pd.Series) -> Change:
        first, second = (f"{side}/results.jsonl#{listed(row[side])}:output_tok_s" for side in SIDES)
        value = Value(percent(row["mean"]), f"geomean({second})/geomean({first})", row["mean"])
        bounds = () if pd.isna(row["low"]) else (row["low"], row["high"])
        return Change(row["arm"], row["c"], value, verdict(row["mean"], *bounds), row["n"])

    # -- parts ----------------------------------------------------------------------------
    def head(self) -> Html:
        """Kicker, title, standfirst and byline."""
        all_ = [self._change(row) for _, row in self.data.iterrows()]
        n = {kind: sum(x.verdict == kind for x in all_) for kind in ("gain", "loss", "same")}
        where = "kvtop_lib.note.compared:verdicts"
        text = say(
            "Of {all} points that both runs hold, {same} are level, {gain} give more output in "
            "the second run, {loss} less.",
            all=Value(str(len(all_)), where, float(len(all_))),
            **{k: Value(str(v), f"{where}.{k}", float(v)) for k, v in n.items()},
        )
        a, b = (self._name(ev) for ev in self.sides)
        title = say("Two runs compared: {a} and {b}", a=a, b=b)
        kicker = [say("KVTop"), say("speculative decoding"), self.first.field("model.title"),
                  say("comparison")]  # fmt: skip
        byline = [
            say("{s} run: {d}, {c}", s=side, d=head.day(ev) or "no date",
                c=method.commit(ev) or "no commit")
            for ev, side in zip(self.sides, SIDES, strict=True)
        ]  # fmt: skip
        return head.framed(kicker, title, text, byline)

    def tiles(self) -> Html:
        """Second run against first at both ends of the load, for reference and headline arm."""
        tiles = []
        for arm in [a for a in (self.first.reference, self.first.primary) if a]:
            changes = self.changes(arm)
            for x in dict.fromkeys([changes[0], changes[-1]] if changes else []):
                label = say(
                    "{c}: {arm}, second run against first", c=self.first.load_value(x.c),
                    arm=self.first.title(arm),
                )  # fmt: skip
                tiles.append(Tile(x.percent, label, tone=head.tone(x)))
        return section(Markup("").join(t.html() for t in tiles), "tiles")

    def figure(self, name: str) -> Html:
        """``between`` (second run over first) or ``gains`` (the headline arm in both runs)."""
        plate = {"between": self._between, "gains": self._gains}[name]()
        if plate is None:
            return paragraphs(say("Drafting against the baseline was not measured in both runs."))
        self._numbered += 1
        number = Value(str(self._numbered), "order of the figures")
        return figure(plate, number, definition(self._rows(plate.metric), "method"))

    def _between(self) -> Plate:
        titles = list(dict.fromkeys(self.data["title"]))
        drawn = self.data.drop(columns=[*SIDES])
        chart = figures.ratio_to_baseline(drawn, ["", *titles], "second run against first")
        every = [self._change(row) for _, row in self.data.iterrows()]
        far = max(every, key=lambda x: abs(x.ratio - 1))
        claim = say(
            "The largest difference is {p} ({arm}, {c}).", p=far.percent,
            arm=self.first.title(far.arm), c=self.first.load_value(far.c),
        )  # fmt: skip
        body = say(
            "The runs share no launch, so nothing is paired and whatever changed on the machine "
            "between them is in the difference."
        )
        data = self.data.assign(
            **{f"lines of {s}": [listed(x) for x in self.data[s]] for s in SIDES}
        ).drop(columns=[*SIDES, "values"])
        metric = say("output throughput of the second run over the first's, log axis")
        return Plate("between", (chart,), data, (claim, body), metric)

    def _gains(self) -> Plate | None:
        arm = self.first.primary
        if arm is None:
            return None
        labels = self._labels()
        data = frames.gains(*self.sides, labels)
        if set(data.get("title", [])) != set(labels):
            return None
        chart = figures.ratio_to_baseline(data, ["baseline", *labels])
        parts = [
            say("in the {s} run {x}", s=side, x=listing([claims.at(x, ev) for x in _ends(ev, arm)]))
            for ev, side in zip(self.sides, SIDES, strict=True)
        ]
        title = self.first.title(arm)
        claim = say("{arm} against the baseline: {parts}.", arm=title, parts=listing(parts))
        metric = say("output throughput over the baseline's of the same run, log axis")
        return Plate("gains", (chart,), data, (claim, Markup("")), metric)

    def _rows(self, metric: Markup) -> list[tuple[str, Markup | None]]:
        arms = [self.first.title(a) for a in shared_arms(*self.sides)]
        rows = [("metric", metric), ("arms", Markup(", ").join(arms))]
        for ev, side in zip(self.sides, SIDES, strict=True):
            lines = Value(method.ranges(ev.points["line"].tolist()), f"{ev.origin}:lines")
            where = say("{n}, results.jsonl {l}", n=self._name(ev), l=lines)
            rows.append((f"{side} run", method.joined(where, method.commit(ev), by=" · ")))
        return rows

    def differences(self) -> Html:
        """Table of the declared differences, or the sentence that there are none."""
        if not self.found:
            return paragraphs(say("Machine, model, workload, engine, plan and code agree."))
        rows = [
            {"what": d.group, "field": d.path, **{s: short(v, 120) for s, v in
                                                  zip(SIDES, (d.first, d.second), strict=True)}}
            for d in self.found
        ]  # fmt: skip
        return Html(table(pd.DataFrame(rows), "declared differences"))

    def method(self) -> Html:
        """Method tables of both runs."""
        return Html(Markup("").join(
            Markup("<h3>{}</h3>").format(say("The {s} run: {n}", s=side, n=self._name(ev)))
            + method.full(ev)
            for ev, side in zip(self.sides, SIDES, strict=True)
        ))  # fmt: skip

    def caveats(self) -> Html:
        """What a comparison of two runs does not show."""
        groups = list(dict.fromkeys(d.group for d in self.found))
        found = [
            say("<b>{s} run.</b> n = {n} per point.", s=side.capitalize(), n=caveats.blocks(ev))
            for ev, side in zip(self.sides, SIDES, strict=True)
        ]
        if len(groups) > 1:
            found.append(say(
                "<b>One change at a time.</b> The runs differ in {g}; a difference of their "
                "results belongs to all of these together.", g=listing(groups),
            ))  # fmt: skip
        found.append(say(
            "<b>The machine's mood.</b> The runs were not interleaved. Only blocks in turn, as "
            "the arms of one run have them, keep a slow drift of the machine out."
        ))  # fmt: skip
        return Html(caveats.as_list(found))


def _ends(ev: Evidence, arm: str) -> list[Change]:
    changes = ev.changes(arm)
    return list(dict.fromkeys([changes[0], changes[-1]]))

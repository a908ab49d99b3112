"""The parts of a note on published evidence; `91_published.ipynb` calls them one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from kvtop_lib.note import captions, claims, head, plates
from kvtop_lib.note.article import Article
from kvtop_lib.note.caveats import as_list
from kvtop_lib.note.parts import Html, Tile, paragraphs
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, listing, say
from kvtop_lib.note.quoted import caveats, method
from kvtop_lib.note.quoted import plates as own
from kvtop_lib.note.quoted.evidence import QuotedEvidence

MAKERS = {**plates.ALL, **{f.__name__: f for f in (own.per_request, own.views, own.active)}}
"""Every figure by name: those of a run, and those of a table with a speed per request."""


class QuotedArticle(Article):
    """The note of a published source (``published:NAME`` or a YAML file)."""

    ev: QuotedEvidence

    @staticmethod
    def read(folder: Path | str) -> QuotedEvidence:
        """Evidence of a published source."""
        return QuotedEvidence.load(folder)

    def head(self) -> Html:
        """Kicker, title, standfirst and byline."""
        ev = self.ev
        kicker = [say("KVTop"), say("speculative decoding"), ev.field("model.title"),
                  say("published evidence")]  # fmt: skip
        run = ev.field("run")
        byline = [method.origin(ev), run and say("run {r}", r=run), method.commit(ev)]
        return head.framed(kicker, claims.headline(ev), claims.standfirst(ev), byline)

    def tiles(self) -> Html:
        """Lowest load, highest load, what a single request sees, how much evidence there is."""
        ev = self.ev
        changes = claims.primary_changes(ev)
        ends = dict.fromkeys([changes[0], changes[-1]]) if changes else {}
        shown = [head.gain_tile(ev, x) for x in ends]
        waits = ev.changes(ev.primary, "ttft_s_p50")
        each = ev.changes(ev.primary, own.EACH)
        if waits:
            shown.append(head.wait_tile(ev, waits[-1]))
        elif each:
            label = say("{c}: speed of one request", c=ev.load_value(each[-1].c))
            base, arm = (
                ev.mean(a, each[-1].c, own.EACH, "tok/s") for a in (ev.reference, ev.primary)
            )
            detail = say("{b} becomes {a}", b=base, a=arm)
            shown.append(Tile(each[-1].percent, label, detail, head.tone(each[-1])))
        return head.row([*shown, self._evidence()])

    def _evidence(self) -> Tile:
        n, window = self.ev.field("profile.blocks"), self.ev.field("profile.window_s", "s")
        if n is None:
            return Tile(say("n = ?"), say("repeats are not stated"))
        detail = say("each {w} long", w=window) if window else Markup("")
        return Tile(say("n = {n}", n=n), say("windows per point"), detail)

    def plate(self, name: str) -> Plate | None:
        """Charts, data and caption of a figure, None when the tables lack what it needs."""
        found = MAKERS[name](self.ev)
        if found is None:
            return None
        ev = found.rests_on or self.ev
        kind = "published" if found.kind == "measured" else found.kind
        metric = found.metric if kind == "computed" else say("{m}", m=ev.field("metric"))
        return replace(found, kind=kind, metric=metric, origin=ev.origin)

    def plates(self) -> dict[str, Plate]:
        """Every figure that the tables allow, by name."""
        return {name: p for name in MAKERS if (p := self.plate(name)) is not None}

    def beside(self, plate: Plate) -> Markup:
        """Method block and evidence line of a figure."""
        ev = plate.rests_on or self.ev
        return method.block(ev, plate.metric) + method.source(ev, plate.lines)

    def waiting(self) -> Html:
        """Time to first token: the figure, or the single numbers that were published."""
        if self.has("ttft"):
            return self.figure("ttft")
        if not self.ev.changes(self.ev.primary, "ttft_s_p50"):
            return paragraphs(say("Nothing on time to first token was published."))
        claim, _ = captions.ttft(self.ev)
        return paragraphs(claim + say(" No other load's was published, so there is no curve."))

    def findings(self) -> Html:
        """What the audit says of the table, one finding a line; nothing without an audit."""
        found = own.audited(self.ev)
        if found is None:
            return Html("")
        items = []
        for i, one in enumerate(found["findings"]):
            where = f"kvtop_lib.audit:findings.{i}"
            subject = Value(one["subject"], f"{where}.subject")
            text = Value(one["text"], f"{where}.text")
            items.append(
                say("<b>{s}</b> – {v}: {t}.", s=subject, v=Value(one["verdict"], where), t=text)
            )
        return Html(as_list(items))

    def method(self) -> Html:
        """The method table."""
        return Html(method.full(self.ev))

    def caveats(self) -> Html:
        """What this does not show."""
        return Html(as_list(caveats.caveats(self.ev)))

    def reproduce(self) -> Html:
        """Where the numbers are, and the commands that check and draw them."""
        name = Value(self.ev.source.id, self.ev.run.path.name)
        files = [
            Value(sheet.file, f"{self.ev.run.path.name}#sheets.{key}.file")
            for key, sheet in self.ev.source.sheets.items()
        ]
        text = say(
            "Numbers: {files}; what the source says besides: <code>params/published/{n}.yaml"
            "</code>. Render this page: <code>kvtop note published:{n}</code>.",
            files=listing(files),
            n=name,
        )
        check = say("Check the table: <code>kvtop audit params/published/{f}</code>.", f=files[0])
        return paragraphs(text, check if own.audited(self.ev) else Markup(""))

    def references(self) -> Html:
        """The source."""
        return Html(as_list([method.origin(self.ev)]))

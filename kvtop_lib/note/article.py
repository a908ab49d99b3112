"""The parts of the note in the order of the page; `90_note.ipynb` calls them one by one."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from kvtop_lib.note import caveats, head, lossless, method, plates
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.parts import Html, figure, heading, paragraphs
from kvtop_lib.note.plate import Plate
from kvtop_lib.note.prose import Value, say
from kvtop_lib.stats import RATES
from kvtop_lib.terms import DEFAULT_PROFILE, KvtopError


class Article:
    """The note of one run; every method returns a part of the page.

    Parameters
    ----------
    folder : Path or str
        A run folder.

    Raises
    ------
    KvtopError
        When the folder holds no manifest or no point, or cannot be read.
    """

    def __init__(self, folder: Path | str) -> None:
        self.ev = self.read(folder)
        self._numbered = 0
        self._made: dict[str, Plate | None] = {}

    @staticmethod
    def read(folder: Path | str) -> Evidence:
        """Evidence of a run folder; what cannot be read is said in one sentence."""
        try:
            return Evidence.load(folder)
        except OSError as e:
            raise KvtopError(f"{e.filename or folder} cannot be read: {e.strerror or e}") from e
        except UnicodeError as e:
            raise KvtopError(f"{folder} holds a record that is not UTF-8 text: {e}") from e

    def head(self) -> Html:
        """Kicker, title, standfirst and byline."""
        return head.header(self.ev)

    def tiles(self) -> Html:
        """Headline tiles."""
        return head.tiles(self.ev)

    def figure(self, name: str) -> Html:
        """One figure of `kvtop_lib.note.plates.ALL`, numbered in the order of calls."""
        plate = self.plate(name)
        if plate is None and self.ev.axis == RATES:
            return Html("")  # a figure over lanes, of which there are none
        if plate is None:
            shows = plates.SHOWS.get(name, "this figure")
            return paragraphs(say("The records hold no valid points for {what} yet.", what=shows))
        number = None
        if plate.numbered:
            self._numbered += 1
            number = Value(str(self._numbered), "order of the figures")
        return figure(plate, number, self.beside(plate))

    def has(self, name: str) -> bool:
        """Whether the records hold what a figure needs."""
        return self.plate(name) is not None

    def section(self, title: str, *texts: str, figure: str) -> Html:
        """Heading (if any), prose and figure; nothing when the records lack what it needs."""
        if not self.has(figure):
            return Html("")
        prose = paragraphs(*(say(text) for text in texts))
        head = heading(title) if title else Markup("")
        return Html(head + Markup(prose) + Markup(self.figure(figure)))

    def plate(self, name: str) -> Plate | None:
        """Charts, data and caption of a figure, None when the records lack what it needs."""
        if name not in self._made:
            self._made[name] = plates.ALL[name](self.ev)
        return self._made[name]

    def plates(self) -> dict[str, Plate]:
        """Every figure that the records allow, by name."""
        return {name: p for name in plates.ALL if (p := self.plate(name)) is not None}

    def beside(self, plate: Plate) -> Markup:
        """Method block and evidence line of a figure."""
        ev = plate.rests_on or self.ev
        return method.block(ev, plate.metric) + method.source(ev, plate.lines)

    def lossless(self) -> Html:
        """Result of the lossless probe."""
        return paragraphs(lossless.verdict(self.ev), Markup(" ").join(lossless.sentences(self.ev)))

    def method(self) -> Html:
        """The method table."""
        return Html(method.full(self.ev))

    def caveats(self) -> Html:
        """What this does not show."""
        return Html(caveats.as_list(caveats.caveats(self.ev)))

    def reproduce(self) -> Html:
        """The commands that make and re-render this page."""
        profile = self.ev.field("profile.id")
        named = profile is not None and str(profile) != DEFAULT_PROFILE
        chosen = say(" PROFILE={p}", p=profile) if named else ""
        text = say(
            "Measure again, from installation to this page: <code>make reproduce{p}</code>. "
            "Render again from the records, without a server: <code>make note{p}</code>.",
            p=chosen,
        )
        if (self.ev.whole["status"] != "ok").any():
            text += say(
                " Measure the points again that are not ok: <code>make retry{p}</code>.", p=chosen
            )
        return paragraphs(text)

"""The live screen of `kvtop top`."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Sparkline, Static

from kvtop_lib.top.show import ROWS, History, text, title
from kvtop_lib.top.watch import Watch


class Screen(App[None]):
    """One server, one line per quantity; goes on when the server is away.

    Parameters
    ----------
    watch : the server.
    period_s : time between two looks, seconds.
    """

    CSS = """
    #title { height: 1; background: $panel; color: $text; padding: 0 1; }
    #message { height: auto; color: $warning; padding: 0 1; display: none; }
    .row { height: 1; padding: 0 1; }
    .label { width: 19; color: $text-muted; }
    .value { width: 1fr; min-width: 20; }
    .row Sparkline { width: 1fr; max-width: 60; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("r", "look", "Look now"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, watch: Watch, period_s: float = 1.0) -> None:
        super().__init__()
        self.watch, self.period_s = watch, period_s
        self.history, self.paused = History(), False
        self.reading: dict[str, Any] | None = None

    def compose(self) -> ComposeResult:
        """Title, message, one row per quantity, keys."""
        yield Static(self.watch.url, id="title", markup=False)
        yield Static("", id="message", markup=False)
        with VerticalScroll():
            for row in ROWS:
                with Horizontal(classes="row", id=f"row-{row.key}"):
                    yield Static(row.label, classes="label")
                    yield Static("–", classes="value", id=row.key, markup=False)
                    yield Sparkline([0.0], id=f"spark-{row.key}", summary_function=max)
        yield Footer()

    def on_mount(self) -> None:
        """Look at once, then once per period."""
        self.action_look()
        self.set_interval(self.period_s, self._tick)

    def _tick(self) -> None:
        if not self.paused:
            self.action_look()

    def action_look(self) -> None:
        """Poll in a thread; a poll that is still under way is not doubled."""
        if not any(w.name == "poll" and w.is_running for w in self.workers):
            self.run_worker(self._poll, name="poll", thread=True)

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self.paused = not self.paused
        self._show_title()

    def _poll(self) -> None:
        reading = self.watch.poll()
        self.call_from_thread(self.show, reading)

    def show(self, reading: dict[str, Any]) -> None:
        """Put a reading on the screen; without a server the last values stay, greyed."""
        self.reading = reading
        self.history.add(reading)
        self._show_title()
        here = reading["state"] == "ok"
        message = self.query_one("#message", Static)
        message.display = not here
        message.update(reading["message"] or "")
        for row in ROWS:
            line = self.query_one(f"#row-{row.key}")
            line.styles.opacity = 1.0 if here else 0.5
            if here:
                self.query_one(f"#{row.key}", Static).update(text(row, reading))
                known = any(v is not None for v in self.history.values[row.key])
                line.display = known or row.key == "iteration"
            values = [v or 0.0 for v in self.history.values[row.key]]
            self.query_one(f"#spark-{row.key}", Sparkline).data = [0.0, *values]

    def _show_title(self) -> None:
        said = title(self.reading) if self.reading else self.watch.url
        paused = "  [paused]" if self.paused else ""
        self.query_one("#title", Static).update(said + paused)

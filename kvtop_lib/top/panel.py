"""The same view in a notebook: a display that a process of its own keeps current.

The process reads and derives; this one only puts its lines on the page, so that a sweep in the
same kernel is not held up by parsing pages of metrics.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
import threading
from typing import Any, Self

from kvtop_lib.top.show import ROWS, History, text, title
from kvtop_lib.top.source import address

WIDTH, HEIGHT = 180, 18
_STYLE = "font-family:monospace;font-size:13px;border-collapse:collapse"
_CELL = "text-align:left;padding:1px 12px 1px 0;white-space:nowrap;border:0"


def spark(values: list[float | None]) -> str:
    """A spark line from 0 to the largest value, as SVG; gaps where there was none."""
    top = max((v for v in values if v is not None), default=0.0) or 1.0
    step = WIDTH / max(1, len(values) - 1)
    pieces: list[list[str]] = [[]]
    for i, v in enumerate(values):
        if v is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{i * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * v / top:.1f}")
    lines = "".join(
        f'<polyline fill="none" stroke="currentColor" points="{" ".join(p)}"/>'
        for p in pieces
        if len(p) > 1
    )
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="history">{lines}</svg>'


def page(reading: dict[str, Any], history: History) -> str:
    """A reading as HTML; texts of the server are escaped."""
    head = f"<caption style='text-align:left'>{html.escape(title(reading))}</caption>"
    if reading["state"] != "ok":
        body = f"<tr><td style='{_CELL}'>{html.escape(reading['message'])}</td></tr>"
        return f"<table style='{_STYLE}'>{head}{body}</table>"
    rows = []
    for row in ROWS:
        values = list(history.values[row.key])
        if any(v is not None for v in values) or row.key == "iteration":
            cells = (html.escape(row.label), html.escape(text(row, reading)), spark(values))
            rows.append("".join(f"<td style='{_CELL}'>{c}</td>" for c in cells))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table style='{_STYLE}'>{head}{body}</table>"


class Panel:
    """A live panel below a cell: ``Panel(server.url).show()``, or a context manager.

    Parameters
    ----------
    url : server.
    period_s : time between two looks, seconds.
    """

    def __init__(self, url: str, period_s: float = 2.0) -> None:
        self.url, self.period_s, self.history = address(url), period_s, History()
        self.html = "<p>waiting for the first reading</p>"
        self._process: subprocess.Popen | None = None
        self._thread: threading.Thread | None = None
        self._handle: Any = None

    def _repr_html_(self) -> str:
        return self.html

    def show(self) -> None:
        """Display it here and keep it current until `stop`, or the kernel's end.

        Nothing is returned: as a cell's last value the panel would stand there a second time.
        """
        from IPython.display import display

        self._handle = display(self, display_id=True)
        self.start()

    def start(self) -> Self:
        """Begin to read; `show` calls it."""
        if self._process is None:
            command = [sys.executable, "-m", "kvtop_lib.top", self.url, str(self.period_s)]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            self._thread = threading.Thread(target=self._follow, name="kvtop-panel", daemon=True)
            self._thread.start()
        return self

    def _follow(self) -> None:
        for line in self._process.stdout:
            self.take(json.loads(line))

    def take(self, reading: dict[str, Any]) -> None:
        """Show a reading."""
        self.history.add(reading)
        self.html = page(reading, self.history)
        if self._handle is not None:
            self._handle.update(self)

    def stop(self) -> None:
        """Leave it as it is."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._thread.join(5)
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.show()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

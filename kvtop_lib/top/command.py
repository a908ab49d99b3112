"""What `kvtop top` does with its options."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from kvtop_lib.terms import KvtopError
from kvtop_lib.top import source
from kvtop_lib.top.show import table
from kvtop_lib.top.watch import Watch


def top(
    url: str = source.DEFAULT_URL,
    *,
    once: bool = False,
    as_json: bool = False,
    every_s: float = 1.0,
    iterations: Path | None = None,
) -> None:
    """Show a server: live, once, or as JSON lines until interrupted.

    Parameters
    ----------
    once : one reading, over one period.
    as_json : one JSON object per reading on standard output (`Watch.poll`).
    every_s : period, seconds.

    Raises
    ------
    KvtopError
        When the address is none, the period too short, standard output no terminal for the live
        screen, or (``once``) when there is no server or no metrics.
    """
    if not 0.1 <= every_s <= 3600:
        raise KvtopError(f"a period of {every_s:g} s is not between 0.1 and 3600 s")
    watch = Watch(source.address(url), iterations)
    if once:
        reading = watch.poll()
        if reading["state"] == "ok":
            time.sleep(every_s)
            reading = watch.poll()
        if reading["state"] != "ok":
            raise KvtopError(reading["message"])
        print(json.dumps(reading) if as_json else table(reading))
    elif as_json:
        _stream(watch, every_s)
    else:
        if not sys.stdout.isatty():
            raise KvtopError(
                "the live screen needs a terminal; use --once for one look or --json for a stream"
            )
        from kvtop_lib.top.screen import Screen

        Screen(watch, every_s).run()


def _stream(watch: Watch, every_s: float) -> None:
    """One line per period; a reader that goes away ends it."""
    try:
        while True:
            print(json.dumps(watch.poll()), flush=True)
            time.sleep(every_s)
    except BrokenPipeError:
        sys.stdout = None  # nothing is left to flush

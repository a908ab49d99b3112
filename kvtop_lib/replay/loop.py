"""The event loop of the traffic: uvloop's where there is one, the standard library's elsewhere.

uvloop calls the protocol from C: a read costs a fraction of what the standard loop's costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for one point's traffic."""
    try:
        import uvloop
    except ImportError:  # not built for this platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine) -> object:
    """Run a coroutine to its end on a loop of its own, from any thread that has none."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)

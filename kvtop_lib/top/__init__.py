"""`kvtop top`: what a server does now, in a terminal, as JSON lines, or in a notebook.

`Watch` polls a server and derives one reading; `screen`, `command` and `panel` only show it.
"""

from kvtop_lib.top.panel import Panel
from kvtop_lib.top.watch import Watch

__all__ = ["Panel", "Watch"]

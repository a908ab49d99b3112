"""``python -m kvtop_lib.top URL``: the stream of readings that a notebook's panel shows."""

from __future__ import annotations

import sys

from kvtop_lib.terms import KvtopError
from kvtop_lib.top.command import top

if __name__ == "__main__":
    try:
        top(sys.argv[1], as_json=True, every_s=float(sys.argv[2]))
    except KvtopError as e:
        sys.exit(f"kvtop: {e}")
    except KeyboardInterrupt:
        sys.exit(130)

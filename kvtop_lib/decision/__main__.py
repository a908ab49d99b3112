"""``python -m kvtop_lib.decision RUN``: print the decision of a run and write decision.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvtop_lib.decision import table, write_decision
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 with one sentence when the run does not fit."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.decision", description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--out", type=Path, help="default: decision.json in it")
    args = parser.parse_args(argv)
    try:
        found = write_decision(Run(args.run), out=args.out)
    except (KvtopError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(found["nothing"] or table(found).to_string(index=False))
    for key in ("how_sure", "noise_floor", "multiplicity"):
        print(f"{key.replace('_', ' ')}: {found[key]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

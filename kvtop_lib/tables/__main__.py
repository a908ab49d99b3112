"""``python -m kvtop_lib.tables readme RUN [README.md]``: print the table, or put it in a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvtop_lib.store import Run
from kvtop_lib.tables.readme import readme_table, write_readme
from kvtop_lib.terms import KvtopError


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 with one sentence when the run or the file does not fit."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.tables", description=__doc__)
    parser.add_argument("what", choices=["readme"])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("file", type=Path, nargs="?", help="file with the two marker lines")
    args = parser.parse_args(argv)
    try:
        if args.file:
            write_readme(Run(args.run), args.file)
        else:
            print(readme_table(Run(args.run)))
    except (KvtopError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

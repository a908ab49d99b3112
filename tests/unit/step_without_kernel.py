"""Stands in for ``python`` in the Makefile: the real steps, notebooks executed without a kernel.

``step_without_kernel.py -m kvtop_lib.step ARGS...`` runs the code cells in this process; a failing
one leaves a partial and no result, as `kvtop_lib.runner` (which has tests of its own) does.
"""

import json
import sys
import types
from pathlib import Path

from kvtop_lib import runner, step
from kvtop_lib.terms import KvtopError


def run(notebook: Path, out: Path, given: dict) -> None:
    names = runner.check(notebook, given)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + runner.PARTIAL)
    partial.write_text("{}")
    cells = json.loads(notebook.read_text())["cells"]
    for number, cell in enumerate(cells, 1):
        try:
            exec("".join(cell["source"]), names)
        except Exception as e:
            what = f"{notebook.name} failed in cell {number}: {type(e).__name__}: {e}"
            raise KvtopError(what) from e
        names.update(given)
    partial.replace(out)


def render_note(folder: Path, out: Path) -> Path:
    run(step.paths.notebooks_dir() / "90_note.ipynb", out, {"run": str(folder)})
    return out


note = types.ModuleType("kvtop_lib.note")  # the real one takes seconds to import
sys.modules["kvtop_lib.note"] = note
note.render_note = render_note
note.standing = lambda run: []  # there is no run behind the page here
runner.run = run
assert sys.argv[1:3] == ["-m", "kvtop_lib.step"]
sys.exit(step.main(sys.argv[3:]))

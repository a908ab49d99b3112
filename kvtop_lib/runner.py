"""Execute one notebook, all or nothing: ``python -m kvtop_lib.runner NOTEBOOK OUT -p name value``.

papermill only warns about an unknown parameter and then runs the defaults, and it writes the
output of a failing notebook. Here names and types are checked against the `parameters` cell before
anything starts, output goes to ``OUT.partial`` and is renamed when the notebook has passed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtop_lib import paths
from kvtop_lib.interrupts import interrupted_by
from kvtop_lib.terms import KvtopError

PARTIAL = ".partial"


def parameters(notebook: Path) -> dict[str, Any]:
    """Names and defaults of a notebook's `parameters` cell (a default that is no literal: None).

    Raises
    ------
    KvtopError
        When the notebook is missing or the cell is not plain assignments.
    """
    if not notebook.is_file():
        raise KvtopError(f"there is no notebook {notebook}")
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [
            "".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])
        ]
    except (ValueError, KeyError, TypeError) as e:
        raise KvtopError(f"{notebook} is not a notebook; give an .ipynb file") from e
    found: dict[str, Any] = {}
    for node in ast.parse("\n".join(tagged)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not all(isinstance(t, ast.Name) for t in targets) or getattr(node, "value", 0) is None:
            raise KvtopError(f"the parameters cell of {notebook.name} must hold only name = value")
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            default = None
        found.update({t.id: default for t in targets})
    return found


def _typed(name: str, value: Any, default: Any) -> Any:
    """`value`, a text of the command line, as the type of the parameter's default."""
    if not isinstance(value, str) or isinstance(default, str) or default is None:
        return value
    try:
        parsed = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        parsed = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(default, float) and isinstance(parsed, int) and not isinstance(parsed, bool):
        parsed = float(parsed)
    if type(parsed) is not type(default):
        raise KvtopError(f"parameter {name!r} must be {type(default).__name__}, not {value!r}")
    return parsed


def check(notebook: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Given parameters with the types of the notebook's defaults.

    Raises
    ------
    KvtopError
        For a name that the notebook does not have, or a value of another type.
    """
    known = parameters(notebook)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
            )
            raise KvtopError(f"{notebook.name} has no parameter {name!r}, {hint}")
    return {name: _typed(name, value, known[name]) for name, value in given.items()}


def run(notebook: Path, out: Path, given: Mapping[str, Any]) -> Path:
    """Execute `notebook` with parameters `given` and write `out` when all cells have passed.

    What cells print is streamed to the terminal. A notebook that fails or is interrupted leaves
    ``<out>.partial`` and no `out`; its kernel is killed, and with it every server it started.

    Raises
    ------
    KvtopError
        For parameters that do not fit, and with the first failing cell's error.
    KeyboardInterrupt
        After Ctrl-C or SIGTERM.
    """
    if out.resolve() == notebook.resolve():
        raise KvtopError(f"{out} is the notebook itself; name another output")
    checked = check(notebook, given)
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel, no other
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.setdefault("KVTOP_PROGRESS", "plain")  # printed lines reach the terminal
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    partial = out.with_name(out.name + PARTIAL)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    try:
        with interrupted_by(signal.SIGTERM, signal.SIGHUP), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            papermill.execute_notebook(
                str(notebook),
                str(partial),
                parameters=checked,
                kernel_name="python3",
                language="python",
                cwd=str(paths.repo_root()),
                progress_bar=False,
                stdout_file=sys.stdout,
                shutdown_kernel="immediate",  # its servers die with it
                extra_arguments=["--log-level=40"],
            )
    except PapermillExecutionError as e:
        if e.ename == "KeyboardInterrupt":
            raise KeyboardInterrupt from e
        raise KvtopError(
            f"{notebook.name} failed in cell {e.exec_count}: {e.ename}: {e.evalue} (see {partial})"
        ) from e
    except DeadKernelError as e:
        raise KvtopError(f"the kernel of {notebook.name} died (see {partial})") from e
    os.replace(partial, out)
    return out


def main(argv: list[str] | None = None) -> int:
    """Command line; exit code 1 with one message on failure, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.runner")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    args = parser.parse_args(argv)
    # the task that waits for a killed kernel ends unseen; the sentence below is what is said of it
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        run(args.notebook, args.out, dict(args.p))
    except KvtopError as e:
        print(f"kvtop: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"kvtop: {args.notebook.name} was interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

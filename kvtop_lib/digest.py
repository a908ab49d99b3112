"""Hashes of contents that ignore what does not act: comments, docstrings, layout, outputs."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from kvtop_lib import paths

_C_NOISE = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def digest(value: Any) -> str:
    """SHA-256 of plain data, by its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def python_digest(source: str) -> str:
    """Hash of Python source without comments, docstrings and formatting."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


@cache
def _parsed() -> dict[str, str]:
    """`python_digest` by Python's version and the hash of the bytes: parsing is the slow part."""
    try:
        return dict(json.loads(_parsed_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _parsed_file() -> Path:
    return paths.cache_dir() / "parsed_sources.json"


def file_digest(file: Path) -> str:
    """Hash of a file: Python and C without comments and layout, anything else by its bytes."""
    if file.suffix == ".py":
        source, known = file.read_bytes(), _parsed()
        key = f"{sys.version_info[0]}.{sys.version_info[1]}:{hashlib.sha256(source).hexdigest()}"
        if key not in known:
            known[key] = python_digest(source.decode("utf-8"))
        return known[key]
    if file.suffix in (".c", ".h"):
        code = _C_NOISE.sub(" ", file.read_text(encoding="utf-8"))
        return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sources(parts: Iterable[str], skip: tuple[str, ...] = ()) -> dict[str, str]:
    """Hash of every source file of the library's `parts` (a module or a package), by its path."""
    package, known = Path(__file__).parent, len(_parsed())
    found = {}
    for part in parts:
        single = package / f"{part}.py"
        files = [single] if single.is_file() else sorted((package / part).rglob("*"))
        for file in files:
            name = file.relative_to(package).as_posix()
            wanted = file.suffix in (".py", ".c", ".h", ".css", ".j2", ".js", ".html")
            if file.is_file() and wanted and not name.startswith(skip or ("\0",)):
                found[name] = file_digest(file)
    if len(_parsed()) > known:
        with contextlib.suppress(OSError):  # it only saves time
            write_if_changed(_parsed_file(), json.dumps(_parsed()))
    return found


def notebook_digest(name: str, *, prose: bool) -> str:
    """Hash of a notebook's cell sources: code cells, and with `prose` Markdown cells too."""
    file = paths.notebooks_dir() / f"{name}.ipynb"
    if not file.is_file():
        return "absent"
    cells = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" or (prose and cell["cell_type"] == "markdown"):
            source = cell["source"]
            text = source if isinstance(source, str) else "".join(source)
            if text.strip():
                cells.append([cell["cell_type"], text.strip()])
    return digest(cells)


def checkpoint_digest(folder: Path) -> str:
    """Hash of a checkpoint: contents of a committed one, names and sizes of any other."""
    if not folder.is_dir():
        return "absent"
    files = [f for f in sorted(folder.iterdir()) if f.suffix in (".safetensors", ".json", ".pt")]
    committed = folder.is_relative_to(paths.embedded_dir())
    return digest([(f.name, file_digest(f) if committed else f.stat().st_size) for f in files])


def write_if_changed(file: Path, text: str) -> bool:
    """Write `text` unless the file holds it already; True when it was written."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
    return True

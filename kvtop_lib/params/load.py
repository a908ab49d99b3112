"""Reading parameter files, with errors that name the file, the key and the mend."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from kvtop_lib import paths
from kvtop_lib.params.arm import Arm
from kvtop_lib.params.base import ParamsFile
from kvtop_lib.params.model import Model
from kvtop_lib.params.profile import Profile
from kvtop_lib.params.published import Published
from kvtop_lib.params.workload import Workload
from kvtop_lib.terms import KvtopError

_FOLDER: dict[type[ParamsFile], str] = {
    Arm: "arms",
    Model: "models",
    Workload: "workloads",
    Profile: "profiles",
    Published: "published",
}
P = TypeVar("P", bound=ParamsFile)


def params_path(kind: type[ParamsFile], name: str) -> Path:
    """File of one arm, model, workload or profile."""
    return paths.params_dir() / _FOLDER[kind] / f"{name}.yaml"


def list_names(kind: type[ParamsFile]) -> list[str]:
    """Ids of all files of a kind, sorted."""
    return sorted(p.stem for p in (paths.params_dir() / _FOLDER[kind]).glob("*.yaml"))


def _sentence(error: ValidationError, fields: list[str]) -> str:
    parts = []
    for e in error.errors():
        where = ".".join(str(p) for p in e["loc"]) or "the file"
        if e["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(e["loc"][-1]), fields, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            parts.append(f"unknown key {where!r}{hint}")
        else:
            parts.append(f"{where}: {e['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)


def _load(kind: type[P], name: str) -> P:
    file = params_path(kind, name)
    noun = kind.__name__.lower()
    if not file.is_file():
        known = list_names(kind)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
        where = f"{file.name} is not in params/{_FOLDER[kind]}"
        raise KvtopError(f"no {noun} {name!r} ({where}), {hint}")
    return _parse(kind, file)


def _parse(kind: type[P], file: Path) -> P:
    name = file.stem
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise KvtopError(f"{file} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise KvtopError(f"{file} is not valid YAML: {' '.join(str(e).split())}") from e
    if not isinstance(data, dict):
        raise KvtopError(f"{file} must hold keys and values, it holds {type(data).__name__}")
    if odd := [k for k in data if not isinstance(k, str)]:
        raise KvtopError(f"{file}: unknown key {odd[0]!r}")
    if data.get("id", name) != name:
        raise KvtopError(f"{file}: the file's name is the id, remove or correct id: {data['id']!r}")
    try:
        return kind(**{**data, "id": name})
    except ValidationError as e:
        raise KvtopError(f"{file}: {_sentence(e, list(kind.model_fields))}") from e


def load_arm(name: str) -> Arm:
    """Read ``params/arms/<name>.yaml``.

    Raises
    ------
    KvtopError
        When the file is missing, is not YAML, or holds an unknown or wrong value.
    """
    return _load(Arm, name)


def load_model(name: str) -> Model:
    """Read ``params/models/<name>.yaml``; errors as in `load_arm`."""
    return _load(Model, name)


def load_workload(name: str) -> Workload:
    """Read ``params/workloads/<name>.yaml``; errors as in `load_arm`."""
    return _load(Workload, name)


def load_published(name: str) -> Published:
    """Read ``params/published/<name>.yaml``; errors as in `load_arm`."""
    return _load(Published, name)


def read_published(file: Path) -> Published:
    """Read a published source's YAML file that lies anywhere; errors as in `load_arm`."""
    return _parse(Published, file)


def load_profile(name: str) -> Profile:
    """Read ``params/profiles/<name>.yaml`` and check that all it names exists.

    Raises
    ------
    KvtopError
        As `load_arm`, also for a missing or faulty arm, model or workload, and for an MTP arm
        on a model without an MTP layer.
    """
    profile = _load(Profile, name)
    model, _ = load_model(profile.model), load_workload(profile.workload)
    for arm in map(load_arm, profile.arms):
        if arm.draft.uses_mtp and model.mtp is None:
            raise KvtopError(
                f"profile {name!r}: arm {arm.id!r} drafts with MTP, model {model.id!r} has no "
                "MTP layer (mtp: in its file); take the arm out or add the layer"
            )
    return profile

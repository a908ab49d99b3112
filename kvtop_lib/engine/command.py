"""The command line and environment that serve one model under one arm."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kvtop_lib import paths
from kvtop_lib.params import Arm, Model
from kvtop_lib.params.base import ServerArgs
from kvtop_lib.terms import KvtopError

HOST = "127.0.0.1"
SERVED_NAME = "kvtop"  # the `model` field of requests, the same for every model
MODULE = "sglang.launch_server"
RECORD = "KVTOP_RECORD"  # read by the plug-in: file for the stream of iterations

DRAFT_LOG = "KVTOP_DRAFT_LOG"  # read by the plug-in: file for widths and draft counts

_ALL: ServerArgs = {
    "served-model-name": SERVED_NAME,
    "enable-metrics": True,
    "enable-cache-report": True,
    "random-seed": 1,
    "decode-log-interval": 10,  # gauges refresh every so many iterations
}
_CPU: ServerArgs = {
    "device": "cpu",
    "attention-backend": "intel_amx",  # the only CPU back end that drafts; the plug-in supplies it
    "disable-cuda-graph": True,
    "sleep-on-idle": True,  # an idle server would burn a core
    # SGLang does so for drafting arms on a CPU; left on, the baseline alone would deliver its
    # tokens an iteration later and run one more iteration per finished request.
    "disable-overlap-schedule": True,
}


@dataclass(frozen=True)
class Command:
    """How a server is started.

    Attributes
    ----------
    args : flags without dashes, as requested; an absent flag is the engine's default.
    argv : the whole command.
    env : variables that are added to the launching process's environment.
    """

    args: ServerArgs
    argv: tuple[str, ...]
    env: dict[str, str]


def draft_args(arm: Arm, model: Model) -> ServerArgs:
    """Flags of the arm's drafting: a chain of `depth` drafts, `width` tokens verified per forward.

    Raises
    ------
    KvtopError
        When the arm drafts with an MTP layer and the model has none.
    """
    draft = arm.draft
    if draft.method == "none":
        return {}
    if draft.method == "ngram":
        return {
            "speculative-algorithm": "NGRAM",
            "speculative-num-draft-tokens": draft.width,
            "speculative-ngram-min-bfs-breadth": 1,
            "speculative-ngram-max-bfs-breadth": 1,  # a chain, like MTP's
        }
    if model.mtp is None:
        raise KvtopError(
            f"arm {arm.id!r} drafts with MTP, model {model.id!r} has no MTP layer; "
            "add mtp: to the model's file or choose another arm"
        )
    args: ServerArgs = {
        "speculative-algorithm": model.mtp.algorithm,
        "speculative-num-steps": draft.depth,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": draft.width,
    }
    if model.mtp.draft_path:
        args["speculative-draft-model-path"] = str(model.mtp.draft_path)
    if model.mtp.token_map_path:
        args["speculative-token-map"] = str(model.mtp.token_map_path)
    if draft.policy:  # a state per width is prepared; the plug-in says which widths
        args["speculative-adaptive"] = True
    return args


def server_args(model: Model, arm: Arm, port: int) -> ServerArgs:
    """All requested flags; a later source wins: ours, the model's, the drafting's, the arm's."""
    merged: ServerArgs = {
        "model-path": str(model.path),
        "host": HOST,
        "port": port,
        "dtype": model.dtype,
        "context-length": model.context_tokens,
        **_ALL,
        **(_CPU if model.device == "cpu" else {}),
        **model.server_args,
        **draft_args(arm, model),
        **arm.server_args,
    }
    return {name: value for name, value in merged.items() if value is not False}


def server_env(model: Model, arm: Arm, record: Path | None = None) -> dict[str, str]:
    """Variables of the server: ours, then the model's, then the arm's."""
    env = {"KVTOP_SGLANG": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if record is not None and arm.record_iterations:
        env[RECORD] = str(record.absolute())
    tools = str(Path(sys.executable).parent)  # SGLang compiles its n-gram index with this `ninja`
    env["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", os.defpath)])
    if model.device == "cpu":
        site = str(paths.plugin_site_dir())  # holds the CPU stand-in of `sgl_kernel`
        inherited = os.environ.get("PYTHONPATH")
        env |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "kvtop_lib.sglang_plugin.cpu_models",  # seconds less
            "CUDA_VISIBLE_DEVICES": "",  # a CPU model stays on the CPU where there is a GPU too
            "PYTHONPATH": os.pathsep.join([site, inherited] if inherited else [site]),
            "OMP_NUM_THREADS": "1",  # torch's pool; the plug-in's kernels have a pool of their own
            "KVTOP_THREADS": os.environ.get("KVTOP_THREADS") or str(len(os.sched_getaffinity(0))),
            "KVTOP_CACHE": str(paths.cache_dir()),
        }
    if told := arm.draft.plugin_config:
        env["KVTOP_DRAFT"] = json.dumps(told)
        if record is not None:
            env[DRAFT_LOG] = str(record.with_name("drafts.jsonl").absolute())
    if arm.draft.simulated_accept_len is not None:
        env |= {
            "SGLANG_SIMULATE_ACC_LEN": f"{arm.draft.simulated_accept_len:g}",
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",  # the mean is the asked length
            "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",  # not one token throughout
        }
    return {**env, **model.env, **arm.env}


def server_command(model: Model, arm: Arm, port: int, record: Path | None = None) -> Command:
    """Command line and environment of `arm` on `model`, listening on loopback at `port`.

    ``record`` is the file for the iterations of an arm that has them recorded.

    Raises
    ------
    KvtopError
        As `draft_args`.
    """
    args = server_args(model, arm, port)
    argv = [sys.executable, "-m", MODULE]
    for name, value in args.items():
        argv += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return Command(args=args, argv=tuple(argv), env=server_env(model, arm, record))

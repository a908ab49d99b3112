"""The compiled kernels as ctypes functions, or None where they cannot be built."""

import contextlib
import ctypes
import functools
import logging
import os

from . import build

log = logging.getLogger(__name__)
_P, _L, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_float


class CLinear(ctypes.Structure):
    """`Linear` of linear.h."""

    _fields_ = [("w", _P), ("bias", _P), ("n", _L), ("k", _L), ("is_float32", _L)]


class CAttention(ctypes.Structure):
    """`Attention` of attention.h."""

    _fields_ = [
        *(
            (name, _P)
            for name in (
                "q",
                "out",
                "k_pool",
                "v_pool",
                "req_to_token",
                "req_pool",
                "seq_lens",
                "extend_lens",
                "mask",
            )
        ),
        *(
            (name, _L)
            for name in (
                "ldq",
                "ldo",
                "k_slot",
                "v_slot",
                "req_stride",
                "batch",
                "q_heads",
                "kv_heads",
                "head_dim",
                "v_dim",
                "causal",
                "window",
            )
        ),
        ("scale", _F),
        ("logit_cap", _F),
    ]


class CLayer(ctypes.Structure):
    """`Layer` of stack.h."""

    _fields_ = [
        *((name, _P) for name in ("in_norm", "post_norm", "k_pool", "v_pool")),
        *((name, CLinear) for name in ("qkv", "o", "gate_up", "down")),
    ]


class CStack(ctypes.Structure):
    """`Stack` of stack.h."""

    _fields_ = [
        *((name, _P) for name in ("layer", "final_norm", "cos_sin")),
        *((name, _L) for name in ("layers", "hidden", "ffn", "rotary")),
        ("eps", _F),
    ]


SIGNATURES = {
    "kvtop_linear": [_P, _P, _L, _P, _L, _L],
    "kvtop_norm": [_P, _P, _P, _P, _L, _L, _L, _L, _L, _F],
    "kvtop_rope": [_P, _P, _P, _P, _L, _L, _L, _L, _L, _L, _L],
    "kvtop_store_kv": [_P, _P, _P, _P, _P, _L, _L, _L, _L, _L],
    "kvtop_silu_and_mul": [_P, _P, _L, _L, _L],
    "kvtop_attention": [_P],
    "kvtop_stack": [_P, _P, _P, _P, _P, _P, _P, _L],
    "kvtop_argmax": [_P, _P, _L, _L, _L],
    "kvtop_set_threads": [ctypes.c_int],
}


def default_threads() -> int:
    """`KVTOP_THREADS`, else the number of CPUs this process may use."""
    if value := os.environ.get("KVTOP_THREADS"):
        if not value.isdigit() or int(value) < 1:
            raise ValueError(f"KVTOP_THREADS is {value!r}: give a number of threads from 1 on")
        return int(value)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    return len(cpus)


def load(march: str | None = None) -> ctypes.CDLL:
    """Load the library for one target; raises `build.BuildError` where it cannot be built."""
    cdll = ctypes.CDLL(str(build.library(march)))
    for name, arguments in SIGNATURES.items():
        function = getattr(cdll, name)
        function.argtypes, function.restype = arguments, None
    cdll.kvtop_isa.restype = ctypes.c_char_p
    cdll.kvtop_threads.restype = ctypes.c_int
    cdll.kvtop_stack_workspace.argtypes = [_P, _P]
    cdll.kvtop_stack_workspace.restype = _L
    cdll.kvtop_set_threads(default_threads())
    return cdll


@functools.cache
def _default() -> ctypes.CDLL | None:
    if os.environ.get("KVTOP_KERNELS") == "torch":
        log.warning("KVTOP_KERNELS=torch: the C kernels are off, which is several times slower")
        return None
    try:
        return load()
    except build.BuildError as error:
        log.warning("The C kernels are off, torch is several times slower: %s", error)
        return None


_chosen: list[ctypes.CDLL | None] = []


def native() -> ctypes.CDLL | None:
    """The kernels of this CPU; None (said once in the log) when torch must do the work.

    `KVTOP_KERNELS=torch` asks for torch on purpose.
    """
    return _chosen[-1] if _chosen else _default()


@contextlib.contextmanager
def using(library: ctypes.CDLL | None):
    """Run the block on this library, or on torch for None (tests and bench compare them)."""
    _chosen.append(library)
    try:
        yield library
    finally:
        _chosen.pop()


def set_threads(count: int) -> None:
    """Threads of all kernels of this process from now on (results do not depend on it)."""
    if library := native():
        library.kvtop_set_threads(count)


def threads() -> int:
    """Threads that the C kernels use; 1 without them (torch has its own setting)."""
    library = native()
    return library.kvtop_threads() if library else 1

"""CPU kernels: float32 activations, bf16 or float32 weights, one fixed order of every sum.

Every result is bit-identical for any number of rows, threads and any vector width, so that a
token gets the same logits in decode, verify and prefill. Compiled from `csrc` at first use;
without a compiler the same functions run in torch, slower, and say so once in the log.
`KVTOP_THREADS` sets the threads (default: all CPUs of the process), `KVTOP_CACHE` the folder of
the compiled library, `KVTOP_KERNELS=torch` turns the C kernels off.
"""

from .attention import Batch, attention
from .layer import LlamaLayer
from .lib import native, set_threads, threads
from .linear import Packed, linear, pack_weight
from .rows import argmax, fused_add_rms_norm, rms_norm, rope_, silu_and_mul, store_kv
from .stack import LlamaStack

__all__ = [
    "Batch",
    "LlamaLayer",
    "LlamaStack",
    "Packed",
    "argmax",
    "attention",
    "fused_add_rms_norm",
    "linear",
    "native",
    "pack_weight",
    "rms_norm",
    "rope_",
    "set_threads",
    "silu_and_mul",
    "store_kv",
    "threads",
]

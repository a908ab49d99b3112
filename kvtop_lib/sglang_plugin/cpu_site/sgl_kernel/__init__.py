"""Stand-in for SGLang's CPU build of ``sgl_kernel`` on machines without AMX.

SGLang 0.5.23 imports a module of this name as soon as ``SGLANG_USE_CPU_ENGINE=1`` is set, in
processes where no plug-in is loaded yet; its own CPU build needs AVX-512 and AMX. This folder
goes onto ``PYTHONPATH`` for servers on the CPU only. It must never be installed as a top-level
package: on a GPU host it would hide the real one.

The functions are those that SGLang calls on a CPU, under its own names. Their contracts are
those of the Triton kernels beside SGLang's call sites (``sglang/kernels/ops/speculative`` and
``sglang/kernels/ops/kvcache``). Out of it on purpose: ``torch.ops.sgl_kernel.
convert_weight_packed``, whose presence makes SGLang believe that there is AMX.
"""

from . import attention  # noqa: F401  registers torch.ops.sgl_kernel.*_attention_cpu
from .accept import (
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .trees import build_tree_kernel_efficient_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

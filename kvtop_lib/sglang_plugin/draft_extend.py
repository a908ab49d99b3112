"""The draft layer's pass after a verification, for a Llama-layout layer on a CPU.

SGLang runs it over every verified row, through a forward batch of its own, because a captured
graph needs one shape. A CPU has no graphs: here only the accepted rows run, straight into the
kernels. Rejected rows leave no KV; the next pass or draft writes their slots before any key is
read from them.
"""

import torch

from . import kernels
from .llama import stack_of
from .packed import linear


def extend(original, worker, batch, result, **kwargs) -> None:
    """AROUND hook of `EagleDraftWorker._draft_extend_for_decode`.

    Fills `result.next_draft_input`: the first draft of each request (0 where the head is put off,
    see `drafts.heads`) and the layer's hidden state [bs, hidden] behind it.
    """
    stack = _stack(worker, batch)
    if stack is None:
        return original(worker, batch, result, **kwargs)
    model, head = worker.draft_runner.model.model, worker.draft_runner.model.lm_head.weight
    tokens, states, positions, slots = _window(worker, batch, result)
    accepted = result.accept_lens.to(torch.int64)
    if worker.speculative_num_draft_tokens > 1:
        columns = torch.arange(worker.speculative_num_draft_tokens)
        rows = (columns < accepted[:, None]).flatten().nonzero().flatten()
        tokens, states, positions, slots = (x[rows] for x in (tokens, states, positions, slots))
    x = model.fc(torch.cat((model.embed_tokens(tokens), states), dim=-1))
    table = worker.req_to_token_pool.req_to_token
    seen = kernels.Batch(table, batch.req_pool_indices, batch.seq_lens + accepted, accepted)
    hidden = stack.forward(x, positions, slots, seen)[accepted.cumsum(0) - 1]
    heads = worker.__dict__.get("kvtop_heads")
    following = result.next_draft_input
    if heads is not None and heads.off:
        following.topk_index = heads.put_off(hidden)
    else:
        following.topk_index = kernels.argmax(linear(hidden, head, None))[:, None]
    following.topk_p = torch.ones_like(following.topk_index, dtype=torch.float32)
    following.hidden_states = hidden
    return None


def _window(worker, batch, result):
    """Token after each verified row, the trunk's state there, its position and KV slot."""
    columns = torch.arange(worker.speculative_num_draft_tokens)
    positions = (batch.seq_lens[:, None] + columns).flatten()
    tokens = result.next_token_ids.to(torch.int64)
    return tokens, result.logits_output.hidden_states, positions, batch.out_cache_loc


def _stack(worker, batch) -> kernels.LlamaStack | None:
    """The draft layer as one kernel; None when SGLang's own pass must run."""
    from sglang.srt.runtime_context import get_spec

    runner = worker.draft_runner
    chain = worker.topk == 1 and not get_spec().speculative_use_rejection_sampling
    if batch.forward_mode.is_idle() or not chain or runner.canary_manager is not None:
        return None
    model, head = runner.model.model, getattr(runner.model, "lm_head", None)
    if not hasattr(model, "fc") or head is None or head.weight.dtype != torch.float32:
        return None
    return stack_of(model, runner.token_to_kv_pool)

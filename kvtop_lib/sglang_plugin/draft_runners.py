"""The two graph runners of an EAGLE draft, for a CPU.

On a GPU, SGLang replays captured graphs for the draft loop and for the draft-extend pass: one
launch each, and the head only on the rows that are needed. A CPU has no graphs, and without these
runners drafting alone would pay for it: the head on every verified row, and a full trip through
the model runner for each draft step. They fill the same slots of SGLang's draft worker.
"""

import torch

from . import kernels
from .llama import stack_of
from .packed import linear


class CpuDraftExtendRunner:
    """Draft-extend with the head on each request's last accepted row only, any draft model.

    Parameters
    ----------
    worker : SGLang's `EagleDraftWorker`
    """

    leaves_out_heads = True  # nothing is captured: `drafts.heads` may put the head off

    def __init__(self, worker):
        self._runner = worker.draft_runner

    def can_run_graph(self, forward_batch) -> bool:
        """Any batch with requests in it."""
        return not forward_batch.forward_mode.is_idle()

    def execute(self, forward_batch, select_index: torch.Tensor):
        """Logits and hidden states of the rows ``select_index`` [bs]."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        forward_batch.spec_info.select_index = select_index
        forward_batch.capture_hidden_mode = CaptureHiddenMode.LAST
        return self._runner.forward(forward_batch).logits_output


class CpuDraftRunner:
    """All steps of a chain draft by a Llama-layout layer, without a forward batch per step.

    Parameters
    ----------
    worker : SGLang's `EagleDraftWorker`
    """

    def __init__(self, worker):
        self._worker = worker

    def can_run_graph(self, forward_batch) -> bool:
        """Chains of at least two drafts whose layer runs as one kernel."""
        worker = self._worker
        several = worker.topk == 1 and worker.speculative_num_steps > 1
        fits = forward_batch.batch_size <= worker._topk1_parents_prealloc.shape[0]
        if not (several and fits) or forward_batch.forward_mode.is_idle():
            return False
        model = worker.draft_runner.model.model
        return hasattr(model, "fc") and stack_of(model, self._pool) is not None

    @property
    def _pool(self):
        return self._worker.draft_runner.token_to_kv_pool

    def execute(self, forward_batch):
        """Draft a chain of ``steps`` tokens per request.

        Returns
        -------
        parent_list, top_scores_index, draft_tokens [bs, steps], draft_probs (None)
            As `EagleDraftWorker.draft_forward` returns them.
        """
        worker, spec = self._worker, forward_batch.spec_info
        model, head = worker.draft_runner.model.model, worker.draft_runner.model.lm_head.weight
        stack = stack_of(model, self._pool)
        table = worker.req_to_token_pool.req_to_token
        steps, bs = worker.speculative_num_steps, forward_batch.batch_size
        slots = forward_batch.out_cache_loc.view(bs, steps).t().contiguous()  # step by step
        hidden, tokens = spec.hidden_states, [self._target_ids(spec.topk_index)]
        for step in range(steps - 1):
            x = model.fc(torch.cat((model.embed_tokens(tokens[-1].flatten()), hidden), dim=-1))
            batch = kernels.Batch(
                table, forward_batch.req_pool_indices, forward_batch.seq_lens + step + 1
            )
            positions = forward_batch.positions + step
            hidden = stack.forward(x, positions, slots[step], batch)
            best = kernels.argmax(linear(hidden, head, None))
            tokens.append(self._target_ids(best[:, None]))
        parents, scores = worker._topk1_parents_prealloc, worker._topk1_score_indices_prealloc
        return parents[:bs], scores[:bs], torch.cat(tokens, dim=1), None

    def _target_ids(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Ids of the trunk's vocabulary for ids of the draft's (the same without a token map)."""
        token_map = self._worker.hot_token_id
        return draft_ids if token_map is None else token_map[draft_ids]

"""SGLang's EAGLE worker with a `Director`: widths by its plan, n-gram drafts in matched rows.

SGLang's adaptive speculation supplies a prepared state per width and the swap between them; its
rule is replaced by ours. The draft layer's KV stays right whoever proposed, because it is
rewritten after every verification from the trunk's states and the committed tokens; at width 1
without the layer's head (`heads`).
"""

import os

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from .. import recorder
from .config import DraftConfig, from_environment
from .counts import DraftLog
from .director import Director, Plan
from .heads import Heads, heads_of

TRACE = "KVTOP_DRAFT_TRACE"  # for tests: MTP's next draft at every position, in the log


class PlannedSteps:
    """SGLang's adaptive policy interface around a number that the director has set."""

    def __init__(self, candidates: list[int], steps: int) -> None:
        self._candidates, self._graph_batches = candidates, None
        self.steps = steps

    @property
    def candidate_steps(self) -> list[int]:
        """Draft steps for which states are prepared."""
        return self._candidates

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Batch sizes of captured graphs, the same for every width."""
        self._graph_batches = cuda_graph_bs

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """As set."""
        return self._graph_batches

    def get_steps_for_batch(self, batch_size: int) -> int:
        """What the director chose for this iteration."""
        return self.steps

    def on_verify_complete(self, num_correct_drafts_per_req, batch_size) -> None:
        """No change between iterations."""


class HybridWorker(EAGLEWorkerV2):
    """An EAGLE worker whose iterations a `Director` plans."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        config = from_environment()
        refuse_what_does_not_fit(config, self)
        steps = PlannedSteps(config.steps, self.speculative_num_steps)
        self.adaptive_controller = AdaptiveController(self, steps)
        group = get_tp_group()
        share = None if group.world_size == 1 else group.broadcast_object
        first = group.rank_in_group == 0
        log = DraftLog() if first else None
        if log:
            log.write("config", widths=config.widths, policy=config.policy, ngram=config.ngram)
        self.director = Director(config, share, log)
        self._traced = log if os.environ.get(TRACE) == "1" else None
        self._heads: Heads | None = None

    def init_cuda_graphs(self) -> None:
        """What is captured decides whether heads can be put off."""
        super().init_cuda_graphs()
        self._heads = heads_of(self._draft_worker)

    def forward_batch_generation(self, batch, *args, **kwargs):
        """Plan a decode iteration, then let SGLang run it."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle() or not batch.reqs:
            self.director.interrupted()
            if self._heads:
                self._heads.forget(batch.reqs or ())  # an idle rank has none
            self._draft_worker.kvtop_plan = None
            return super().forward_batch_generation(batch, *args, **kwargs)
        plan = self.director.plan(batch.reqs)
        self.adaptive_controller.params.steps = plan.width - 1
        recorder.note(source=plan.sources, widths=[plan.width] * len(plan.drafts))
        if self._heads and (self._traced or plan.needs_mtp):
            self.director.caught_up(self._heads.catch_up(batch))
        if self._traced:
            self._trace(batch)
        self._draft_worker.kvtop_plan = plan
        if self._heads is None:
            return super().forward_batch_generation(batch, *args, **kwargs)
        requests = list(batch.reqs)
        with self._heads.at(plan.width, requests):
            return super().forward_batch_generation(batch, *args, **kwargs)

    def _trace(self, batch) -> None:
        """Log the first token that MTP would draft for every request, whoever drafts now."""
        first = batch.spec_info.topk_index[:, 0]
        if self._draft_worker.hot_token_id is not None:
            first = self._draft_worker.hot_token_id[first]
        rows = [
            [r.rid, len(r.origin_input_ids) + len(r.output_ids), token]
            for r, token in zip(batch.reqs, first.tolist(), strict=True)
        ]
        self._traced.write("mtp_next", rows=rows)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req, batch_size: int = 0) -> None:
        """Learn from a result; the width changes only when an iteration is planned."""
        self.director.verified(num_correct_drafts_per_req)


def refuse_what_does_not_fit(config: DraftConfig, worker: EAGLEWorkerV2) -> None:
    """Raise `RuntimeError`, one sentence, for what this worker cannot serve."""
    why = None
    if worker.adaptive_controller is None:
        why = "SGLang runs without --speculative-adaptive; add the flag (its log may say why not)"
    elif worker.topk != 1:
        why = "drafts must be chains: pass --speculative-eagle-topk 1"
    elif get_parallel().pp_size > 1:
        why = "pipeline parallelism is not supported: pass --pp-size 1"
    elif config.ngram and not get_schedule().disable_overlap_schedule:
        why = "n-gram drafts need the latest tokens: pass --disable-overlap-schedule"
    elif config.ngram and get_spec().speculative_use_rejection_sampling:
        why = "n-gram drafts have no probabilities: leave out --speculative-use-rejection-sampling"
    if why:
        raise RuntimeError(f"KVTOP_DRAFT: {why}")


def draft(original, worker, batch, **kwargs):
    """AROUND hook of `EagleDraftWorker.draft`: rows with an n-gram match draft from it."""
    plan: Plan | None = worker.__dict__.pop("kvtop_plan", None)
    rows = plan.matched if plan else []
    if not rows:
        return original(worker, batch, **kwargs)
    steps, requests = worker.speculative_num_steps, len(plan.drafts)
    if len(rows) == requests <= worker._topk1_parents_prealloc.shape[0]:
        return without_mtp(worker, batch, plan)
    verify = original(worker, batch, **kwargs)
    tokens = torch.tensor([plan.drafts[r] for r in rows], dtype=verify.draft_token.dtype)
    chains = verify.draft_token.view(requests, steps + 1)
    chains[torch.tensor(rows, device=chains.device), 1:] = tokens.to(chains.device)
    return verify


def without_mtp(worker, batch, plan: Plan):
    """The verify input of a batch in which every row has an n-gram draft."""
    steps, requests = worker.speculative_num_steps, len(plan.drafts)
    tokens = torch.tensor(plan.drafts, dtype=torch.int64).to(worker.device)
    return build_eagle_verify_input(
        batch,
        batch.spec_info,
        worker._topk1_parents_prealloc[:requests],
        worker._topk1_score_indices_prealloc[:requests],
        tokens,
        None,
        target_worker=worker.target_worker,
        topk=1,
        num_steps=steps,
        num_draft_tokens=steps + 1,
        tree_mask_mode=worker.tree_mask_mode,
        device=worker.device,
    )

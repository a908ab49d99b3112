"""The draft head put off while nothing is drafted.

At width 1 the draft layer follows the text, so that drafting can begin with any iteration. Only
its KV and its last hidden state are needed for that: which token it would draft is worked out
when a wider iteration begins, from the state that was kept.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch


class Heads:
    """Draft heads of one worker that have not run yet.

    Parameters
    ----------
    draft_worker : SGLang's `EagleDraftWorker`; its logits processor is wrapped, and its attribute
        ``kvtop_heads`` set.

    Attributes
    ----------
    off : whether a draft pass that runs now leaves its head out.
    waiting : requests whose head has not run since their last iteration.
    """

    def __init__(self, draft_worker) -> None:
        model = draft_worker.draft_runner.model
        self._processor, self._head = model.logits_processor, model.lm_head
        self._logits = self._processor._get_logits
        self._processor._get_logits = self._get_logits
        draft_worker.kvtop_heads = self
        self.off = False
        self._passed: torch.Tensor | None = None
        self._states: dict[str, torch.Tensor] = {}

    @property
    def waiting(self) -> set[str]:
        """Ids of requests."""
        return set(self._states)

    def put_off(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keep what the head would take, [bs, hidden]; stand-ins for the drafts, [bs, 1]."""
        self._passed = hidden
        return torch.zeros((len(hidden), 1), dtype=torch.int64, device=hidden.device)

    @contextlib.contextmanager
    def at(self, width: int, requests: Sequence) -> Iterator[None]:
        """Around a decode iteration of these requests: heads are put off at width 1."""
        self._passed, self.off = None, width == 1
        try:
            yield
        finally:
            self.off = False
        passed, self._passed = self._passed, None
        self._states = {}
        if passed is not None:
            self._states = {r.rid: row for r, row in zip(requests, passed, strict=True)}

    def forget(self, requests) -> None:
        """A prefill of these requests comes with first drafts of its own."""
        for request in requests:
            self._states.pop(request.rid, None)

    def catch_up(self, batch) -> int:
        """Run the heads that wait and put the drafts into the batch; how many there were.

        They go on waiting until the next iteration has ended.
        """
        rows = [i for i, r in enumerate(batch.reqs) if r.rid in self._states]
        if not rows:
            return 0
        hidden = torch.stack([self._states[batch.reqs[i].rid] for i in rows])
        logits = self._processor._compute_lm_head(hidden, self._head)
        best = torch.argmax(logits[:, : self._processor.vocab_size], dim=-1, keepdim=True)
        batch.spec_info.topk_index[rows] = best.to(batch.spec_info.topk_index.dtype)
        return len(rows)

    def _get_logits(self, hidden_states, *args, **kwargs):
        if not self.off:
            return self._logits(hidden_states, *args, **kwargs)
        self.put_off(hidden_states)
        return hidden_states.new_zeros((len(hidden_states), 1))


def heads_of(draft_worker) -> Heads | None:
    """`Heads` where a head can be left out and its drafts are an argmax; else None.

    Not in a captured graph, not for logits that are gathered from several ranks, not where drafts
    are sampled.
    """
    from sglang.srt.runtime_context import get_schedule, get_spec

    model = draft_worker.draft_runner.model
    processor = getattr(model, "logits_processor", None)
    runner = draft_worker.cuda_graph_runner_for_draft_extend
    fits = (
        processor is not None
        and hasattr(model, "lm_head")
        and (runner is None or getattr(runner, "leaves_out_heads", False))
        and not processor.do_tensor_parallel_all_gather
        and not get_spec().speculative_use_rejection_sampling
        and get_schedule().disable_overlap_schedule  # drafts would be on their way to the batch
    )
    return Heads(draft_worker) if fits else None

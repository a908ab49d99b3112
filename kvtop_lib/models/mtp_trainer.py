"""One process of training the draft layer: batches, steps, checkpoints and the curve."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

from kvtop_lib.models.eagle_head import EagleHead, HeadShape
from kvtop_lib.models.mtp_batches import Batch, batches, make_batch
from kvtop_lib.models.mtp_eval import Shared, evaluate
from kvtop_lib.models.mtp_init import (
    TrunkParts,
    draft_vocabulary,
    initial_head,
    token_counts,
)
from kvtop_lib.models.mtp_loss import loss
from kvtop_lib.models.mtp_plan import DOMAINS, TrainPlan, optimisers, rate, split
from kvtop_lib.models.mtp_states import load_states, stored_segments
from kvtop_lib.models.trunk import linear_dtype


def save(value: object, path: Path) -> None:
    """Write a torch file; complete or absent, never half."""
    partial = path.with_name(f".{path.name}.partial")
    torch.save(value, partial)
    partial.rename(path)


class Trainer:
    """One training process; all processes hold the same weights and read different sessions."""

    def __init__(self, model: Path, folder: Path, out: Path, plan: TrainPlan, rank: int):
        self.plan, self.rank, self.out = plan, rank, out
        self.step, self.tokens = 0, 0
        segments, held = split(stored_segments(folder))
        self.held = {}
        if rank == 0:
            self.held = {d: load_states(folder, [s.id for s in held[d]]) for d in DOMAINS}
        self.states = load_states(folder, [s.id for s in segments[rank :: plan.processes]])
        trunk = TrunkParts.load(model)
        counts = token_counts(self.states, len(trunk.embedding))
        self._average([counts], total=True)
        vocabulary = draft_vocabulary(counts, plan.draft_vocabulary)
        self.shared = Shared(trunk.embedding, vocabulary)
        self.draft_head = self.shared.head().to(linear_dtype())
        self.index = torch.full((len(trunk.embedding),), -1)
        self.index[vocabulary] = torch.arange(len(vocabulary))
        self.head = EagleHead(HeadShape.of(trunk.config))
        for parameter in self.head.parameters():
            parameter.data.zero_()
        if rank == 0:
            self.head = initial_head(self.states, trunk)
        self._average([p.data for p in self.head.parameters()], total=True)
        self.optimisers = optimisers(self.head, plan)

    def run(self) -> None:
        """Train until the plan's tokens are seen; goes on from the last checkpoint."""
        checkpoint = self.out / "checkpoint.pt"
        if checkpoint.exists():
            self._restore(torch.load(checkpoint, weights_only=True))
        elif self.rank == 0:
            save(self._result(), self.out / "initial.pt")
            self._log(0.0)
        began = time.monotonic()
        logged = self.tokens
        for number, batch in enumerate(self._endless()):
            if self.tokens >= self.plan.train_tokens:
                break
            if number < self.step:
                continue
            value = self.train(batch())
            if self.rank:
                continue
            if self.tokens - logged >= self.plan.eval_every_tokens:
                logged = self.tokens
                self._log(value)
                print(f"step {self.step}, {time.monotonic() - began:.0f} s", flush=True)
            if self.step % self.plan.checkpoint_every_steps == 0:
                save(self._snapshot(), checkpoint)
        if self.rank == 0:
            save(self._snapshot(), checkpoint)
            save(self._result(), self.out / "final.pt")
            self._log(0.0)

    def train(self, batch: Batch) -> float:
        """One optimiser step; returns the loss."""
        plan, dtype = self.plan, linear_dtype()
        generator = torch.Generator().manual_seed((plan.seed * 1_000_003 + self.step) * 2)
        unroll = float(torch.rand((), generator=generator)) < plan.unroll_share
        generator.manual_seed((plan.seed * 1_000_003 + self.step) * 2 + 1 + self.rank)
        steps = len(plan.loss.step_weights) if unroll else 1
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            value = loss(
                self.head, batch, self.shared.embedding, self.draft_head, self.index, plan.loss,
                steps, generator,
            )  # fmt: skip
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=False)
        value.backward()
        count = torch.tensor([float(len(batch))])
        self._average([p.grad for p in self.head.parameters()])
        self._average([count], total=True)
        factor = rate(self.step, self.tokens, plan)
        for optimiser, base in zip(self.optimisers, (plan.muon_lr, plan.adamw_lr), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * factor
            optimiser.step()
        self.step += 1
        self.tokens += int(count)
        return float(value.detach())

    def _endless(self):
        size = self.plan.batch_tokens // self.plan.processes
        epoch = 0
        while True:
            for group in batches(self.states.segments, size, seed=self.plan.seed + epoch):
                yield lambda g=group: make_batch(self.states, g, self.shared.start, self.shared.end)
            epoch += 1

    def _average(self, tensors: list[torch.Tensor], total: bool = False) -> None:
        """Average over processes in place, or sum (rank 0's weights reach zero-filled peers)."""
        if self.plan.processes == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        if not total:
            flat /= self.plan.processes
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def _result(self) -> dict:
        return {"head": self.head.state_dict(), "vocabulary": self.shared.vocabulary}

    def _snapshot(self) -> dict:
        return {
            "head": self.head.state_dict(), "step": self.step, "tokens": self.tokens,
            "optimisers": [o.state_dict() for o in self.optimisers],
        }  # fmt: skip

    def _restore(self, saved: dict) -> None:
        self.head.load_state_dict(saved["head"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.step, self.tokens = saved["step"], saved["tokens"]

    def _log(self, value: float) -> None:
        line = {"tokens": self.tokens, "step": self.step, "loss": round(value, 4)}
        for domain, states in self.held.items():
            some = list(states.segments[: self.plan.eval_sessions])
            line[domain] = evaluate(self.head, states, some, self.shared)
        with (self.out / "curve.jsonl").open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

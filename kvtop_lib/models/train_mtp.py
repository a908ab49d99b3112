"""Train the draft layer on extracted states: seeded, resumable, one process per core.

`python -m kvtop_lib.models.train_mtp --model DIR --states DIR --out DIR` writes `initial.pt` (the
untrained layer), `checkpoint.pt`, `curve.jsonl` and at the end `final.pt`. Weights are float32;
matrix products run in bf16 where the CPU does that faster.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from kvtop_lib.models.mtp_plan import TrainPlan
from kvtop_lib.models.mtp_trainer import Trainer


def _process(
    rank: int, model: Path, states: Path, out: Path, plan: TrainPlan, meeting: str
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    if plan.processes > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=plan.processes
        )
    Trainer(model, states, out, plan, rank).run()
    if plan.processes > 1:
        dist.destroy_process_group()


def train(model: Path, states: Path, out: Path, plan: TrainPlan) -> Path:
    """Train and return the path of the result (`final.pt`); does nothing when it exists."""
    final = out / "final.pt"
    if final.exists():
        return final
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (model, states, out, plan, str(Path(folder) / "meeting"))
        if plan.processes == 1:
            _process(0, *arguments)
        else:
            torch.multiprocessing.spawn(_process, arguments, nprocs=plan.processes)
    return final


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    plan = TrainPlan()
    for name in ("train_tokens", "processes", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(plan, name))
    args = parser.parse_args(argv)
    plan = replace(plan, train_tokens=args.train_tokens, processes=args.processes, seed=args.seed)
    print(train(args.model, args.states, args.out, plan))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

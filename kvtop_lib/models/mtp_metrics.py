"""Figures of a trained draft layer: `metrics.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch

from kvtop_lib.models.eagle_head import EagleHead, HeadShape
from kvtop_lib.models.mtp_eval import Shared, evaluate
from kvtop_lib.models.mtp_init import TrunkParts
from kvtop_lib.models.mtp_plan import DOMAINS, TrainPlan, split
from kvtop_lib.models.mtp_states import load_states, stored_segments
from kvtop_lib.models.trunk import linear_dtype


def load_head(result: Path, trunk: TrunkParts) -> tuple[EagleHead, Shared]:
    """The layer of `final.pt` with its weights rounded to bf16, as they are served."""
    saved = torch.load(result, weights_only=True)
    head = EagleHead(HeadShape.of(trunk.config))
    head.load_state_dict({name: w.bfloat16().float() for name, w in saved["head"].items()})
    return head, Shared(trunk.embedding, saved["vocabulary"])


def read_curve(folder: Path) -> list[dict]:
    """Points of `curve.jsonl`, the last one of each number of tokens."""
    lines = (folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    points = {point["tokens"]: point for point in map(json.loads, lines)}
    return [points[tokens] for tokens in sorted(points)]


def measure(model: Path, states: Path, run: Path, plan: TrainPlan) -> dict:
    """All figures of a finished training run.

    Parameters
    ----------
    model, states, run : Path
        Trunk checkpoint, extracted states, output folder of training.

    Returns
    -------
    dict with plan, data, parameters, tokens_seen, steps, compute, curve, initial, final (figures
    by domain, from `mtp_eval.evaluate`, over all held-out sessions).
    """
    torch.set_num_threads(1)
    train, held = split(stored_segments(states))
    parts = {domain: load_states(states, [s.id for s in held[domain]]) for domain in DOMAINS}
    curve = read_curve(run)
    trunk = TrunkParts.load(model)
    figures = {}
    for name in ("initial", "final"):
        head, shared = load_head(run / f"{name}.pt", trunk)
        figures[name] = {
            domain: evaluate(head, part, list(part.segments), shared)
            for domain, part in parts.items()
        }
    positions = sum(s.length for s in train)
    answers = int(load_states(states, [s.id for s in train]).output.sum())
    return {
        "plan": asdict(plan),
        "data": {
            "sessions": len(train),
            "positions": positions,
            "answer_positions": answers,
            "other_share": sum(s.length for s in train if s.domain == "other") / positions,
            "reading_share": sum(s.length for s in train if s.domain == "reading") / positions,
            "heldout_sessions": sum(map(len, held.values())),
        },
        "parameters": sum(p.numel() for p in head.parameters()),
        "tokens_seen": curve[-1]["tokens"],
        "steps": curve[-1]["step"],
        "compute": str(linear_dtype()).removeprefix("torch."),
        "curve": curve,
        **figures,
    }


def curve_frame(metrics: dict) -> pd.DataFrame:
    """Agreement of the first step over positions seen: one row per point of the curve."""
    return pd.DataFrame(
        {
            "positions seen": point["tokens"],
            **{domain: point[domain]["agreement"][0] for domain in DOMAINS},
            **{f"{domain}, text": point[domain]["text_agreement"] for domain in DOMAINS},
        }
        for point in metrics["curve"]
    ).set_index("positions seen")


def final_frame(metrics: dict) -> pd.DataFrame:
    """Held-out figures before and after training: one row per domain and state."""
    rows = []
    for domain in DOMAINS:
        for name in ("initial", "final"):
            figures = dict(metrics[name][domain])
            steps = {f"step {i}": v for i, v in enumerate(figures.pop("agreement"), 1)}
            rows.append({"domain": domain, "layer": name, **steps, **figures})
    return pd.DataFrame(rows).set_index(["domain", "layer"])

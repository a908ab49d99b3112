"""The model card of the draft layer, every number of it from `metrics.json`."""

from __future__ import annotations

_CARD = """\
# Draft layer for SmolLM2-135M-Instruct

One EAGLE-style draft (MTP) layer that SGLang serves beside the trunk as `LlamaForCausalLMEagle`.
This file is written by `kvtop_lib/models/mtp_card.py` from `metrics.json`; do not edit it.

## Architecture
`fc` (with bias) joins the embedding of the next token and the trunk's hidden state after its final
norm; one Llama layer of the trunk's sizes follows, without `input_layernorm` and without a final
norm; its output goes to the trunk's head. {parameters:,} parameters are stored in bf16. Embedding
and head are the trunk's and not stored. Drafts come from {vocabulary:,} tokens (`token_map.pt`),
those that the trunk chose most often in training; they cover {coverage_agent} of its choices in
held-out agent answers and {coverage_other} in other answers.

## Data
{sessions:,} sessions, {positions:,} positions, {answers:,} of them in the trunk's own greedy
answers (its loops left out); {other_share} of the positions are talk that is not about files,
{reading_share} are pieces of files that it only read. Agent sessions have the shape of
`builtin:agent` and in part its system prompt, but none of its tasks, its questions or its files:
tools read source and documentation of installed Python packages, where the pieces come from too.
Held out: {held_sessions:,} sessions by whole task, on files that no training session reads; of the
other talk, questions and topics.

## Training
Seed {seed}; {train_tokens:,} positions seen in {steps:,} steps ({passes:.1f} passes), Muon for
the matrices of the layer, AdamW for `fc` and the norm. Loss: cross-entropy to half the trunk's
softmax over the draft vocabulary and half its argmax, plus 0.1 of the relative error of the hidden
state; in {unroll} of the batches the draft steps 2 and 3 are trained on the layer's own outputs as
well.

## Agreement with the trunk, held out
The trunk's choice is its argmax over its whole vocabulary. Steps 2 and 3: given that the chain was
right so far. Acceptance length: 1 + accepted drafts per verify step, simulated by walking through
the held-out answers; `text` is the first step on what users wrote and tools read, which no loop of
the trunk can inflate.

{figures}

## Curve
First draft step, on {curve_sessions} held-out sessions per domain.

{curve}

## Limits
Trained for one trunk, greedy decoding and short English sessions about code. The trunk is a small
model in 4-bit quantised form; its answers are often wrong, and the layer only imitates them.
Agreement is with the trunk as the training code runs it ({compute} matrix products); a server in
float32 can differ at near-ties.

## Licence
The trunk, SmolLM2-135M-Instruct by Hugging Face, is Apache-2.0; this layer was initialised from it
and trained on its outputs. It is published under the licence of this repository.
"""

_LABELS = {
    "agent": "agent sessions (in domain)",
    "other": "other talk (out of domain)",
}


def percent(value: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * value:.1f} %"


def figures_table(final: dict) -> str:
    """Markdown table of the final figures by domain."""
    rows = [
        "| held out | positions | step 1 | step 2 | step 3 | text | AL width 2 | AL width 4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for domain, label in _LABELS.items():
        f = final[domain]
        steps = " | ".join(f"{value:.3f}" for value in f["agreement"])
        rows.append(
            f"| {label} | {f['answer_positions']:,} | {steps} | {f['text_agreement']:.3f} "
            f"| {f['accept_len_w2']:.2f} | {f['accept_len_w4']:.2f} |"
        )
    return "\n".join(rows)


def curve_table(curve: list[dict]) -> str:
    """Markdown table of agreement over positions seen."""
    rows = ["| positions seen | agent | other | agent, text |", "|---|---|---|---|"]
    for point in curve:
        agent, other = point["agent"], point["other"]
        rows.append(
            f"| {point['tokens']:,} | {agent['agreement'][0]:.3f} | {other['agreement'][0]:.3f} "
            f"| {agent['text_agreement']:.3f} |"
        )
    return "\n".join(rows)


def card(metrics: dict) -> str:
    """The card as Markdown."""
    data, plan, final = metrics["data"], metrics["plan"], metrics["final"]
    return _CARD.format(
        parameters=metrics["parameters"],
        vocabulary=plan["draft_vocabulary"],
        coverage_agent=percent(final["agent"]["coverage"]),
        coverage_other=percent(final["other"]["coverage"]),
        sessions=data["sessions"],
        positions=data["positions"],
        answers=data["answer_positions"],
        other_share=percent(data["other_share"]),
        reading_share=percent(data["reading_share"]),
        held_sessions=data["heldout_sessions"],
        seed=plan["seed"],
        train_tokens=metrics["tokens_seen"],
        steps=metrics["steps"],
        passes=metrics["tokens_seen"] / data["positions"],
        unroll=percent(plan["unroll_share"]),
        figures=figures_table(final),
        curve_sessions=plan["eval_sessions"],
        curve=curve_table(metrics["curve"]),
        compute=metrics["compute"],
    )

"""The sessions of a workload: a trace that is made to fit, or requests of one fixed shape."""

from __future__ import annotations

from pathlib import Path

from kvtop_lib.params.workload import Workload
from kvtop_lib.replay.fixed import fixed_trace
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Trace, load_trace


def workload_trace(
    workload: Workload, tokenizer: Path | str | None, seed: int, *, skip_bad: bool = False
) -> Trace:
    """Sessions that a workload replays.

    Parameters
    ----------
    workload
        Its ``trace``, cut and scaled as it says, or its ``fixed`` shape.
    tokenizer
        The served model's folder or ``tokenizer.json``; needed for a fixed shape and for traces
        that tell token counts instead of text.
    seed
        Decides the prompts of a fixed shape.
    skip_bad
        Leave bad lines of a trace out instead of refusing it.

    Raises
    ------
    KvtopError
        As `kvtop_lib.trace.load_trace` and `fixed_trace`, and when a tokenizer is needed and
        none is given.
    """
    if workload.fixed:
        if tokenizer is None:
            raise KvtopError("a fixed shape needs the served model's tokenizer (--tokenizer)")
        return fixed_trace(workload.fixed, tokenizer, seed)
    trace = load_trace(
        workload.trace,
        max_context=workload.max_context_tokens,
        scale_tokens=workload.scale_tokens,
        skip_bad=skip_bad,
        tokenizer=tokenizer,
    )
    if any(s.needs_text and s.text is None for s in trace.sessions):
        raise KvtopError(
            f"the trace {trace.name} tells token counts and no text; name the served model's "
            "tokenizer (--tokenizer), of which text of that length is made"
        )
    return trace


def about(trace: Trace) -> dict:
    """What the records say of the sessions: where they come from and what was done to them."""
    return {"name": trace.name, "sessions": len(trace.sessions), **trace.recorded_with}

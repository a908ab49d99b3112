"""``kvtop trace info`` and ``convert``; ``record`` is added where servers are started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

trace_app = typer.Typer(help="Recorded traces, of many formats.", no_args_is_help=True)

MAX_CONTEXT = typer.Option(help="Keep leading turns that fit into so many tokens.", min=1)
SCALE = typer.Option(help="Shrink blocks, messages and answers to this share, 0 to 1.")
SKIP_BAD = typer.Option("--skip-bad", help="Count bad lines instead of stopping at the first.")
TOKENIZER = typer.Option(help="tokenizer.json or its folder, to count tokens of recorded text.")


@trace_app.command("info")
def trace_info(
    name: Annotated[str, typer.Argument(help="builtin:agent, a file or a folder.")] = (
        "builtin:agent"
    ),
    max_context: Annotated[int | None, MAX_CONTEXT] = None,
    scale_tokens: Annotated[float | None, SCALE] = None,
    skip_bad: Annotated[bool, SKIP_BAD] = False,
    tokenizer: Annotated[Path | None, TOKENIZER] = None,
) -> None:
    """Format, lengths, arrivals, think times, ideal prefix hits and fit of a trace."""
    from kvtop_lib.trace import load_trace
    from kvtop_lib.trace.info import describe

    print(
        describe(
            load_trace(
                name,
                max_context=max_context,
                scale_tokens=scale_tokens,
                skip_bad=skip_bad,
                tokenizer=tokenizer,
            )
        )
    )


@trace_app.command("convert")
def trace_convert(
    name: Annotated[str, typer.Argument(help="builtin:agent, a file or a folder.")],
    out: Annotated[Path, typer.Argument(help="The session JSONL file to write.")],
    max_context: Annotated[int | None, MAX_CONTEXT] = None,
    scale_tokens: Annotated[float | None, SCALE] = None,
    skip_bad: Annotated[bool, SKIP_BAD] = False,
    tokenizer: Annotated[Path | None, TOKENIZER] = None,
) -> None:
    """Write a trace of any format as KVTop's session JSONL."""
    from kvtop_lib.terms import KvtopError
    from kvtop_lib.trace import load_trace, write_sessions

    source = Path(name).resolve()
    if out.exists() and source.exists() and source in (out.resolve(), *out.resolve().parents):
        raise KvtopError(f"{out} belongs to the trace that is read; name another file to write")
    trace = load_trace(
        name,
        max_context=max_context,
        scale_tokens=scale_tokens,
        skip_bad=skip_bad,
        tokenizer=tokenizer,
    )
    write_sessions(trace, out)
    print(f"{out}: {len(trace.sessions):,} sessions, {trace.requests:,} turns")

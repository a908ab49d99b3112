"""The command line of a replay: every wrong combination is one sentence, before anything runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from kvtop_lib.params.shape import Load, OpenLoad
from kvtop_lib.params.workload import Workload
from kvtop_lib.replay.dialect import PATHS
from kvtop_lib.replay.origin import server_url
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.processes import checked
from kvtop_lib.terms import KvtopError

ARRIVALS = ("poisson", "gamma", "constant", "steps", "trace")
OPTIONS = {
    "rate": "--rate", "burstiness": "--burstiness", "steps": "--steps",
    "time_scale": "--time-scale", "jitter_s": "--jitter", "fixed.input_tokens": "--fixed-input",
    "fixed.output_tokens": "--fixed-output", "fixed.sessions": "--fixed-sessions",
    "stagger_s": "--stagger", "max_context_tokens": "--max-context",
    "scale_tokens": "--scale-tokens", "think_factor": "--think-factor",
    "think_cap_s": "--think-cap", "cancel_share": "--cancel-share",
    "cancel_within_s": "--cancel-within", "max_output_tokens": "--max-output-tokens",
    "burn_in_s": "--burn-in", "warmup_s": "--warmup", "window_s": "--window",
    "drain_s": "--drain", "timeout_s": "--timeout",
}  # fmt: skip
"""The option of each field of load, workload and plan."""

OWN = {"burstiness": "gamma", "steps": "steps", "time_scale": "trace", "jitter_s": "trace"}
NEEDS = {"gamma": ("rate", "burstiness"), "steps": ("steps",), "trace": ()}
"""What arrivals take: options that only one kind has, and those that a kind must have."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        print(f"{self.prog}: {message} (--help lists the options)", file=sys.stderr)
        raise SystemExit(2)


def _lanes(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of lanes from 1 on")
    return int(text)


def _as(kind: Callable[[str], Any], what: str = "right") -> Callable[[str], Any]:
    """Reads an option by ``kind``; what that does not take is one sentence."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is not {what}") from None
        except KvtopError as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return read


_number, _whole = _as(float, "a number, as 1.5"), _as(int, "a whole number, as 12")


def _steps(text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [tuple(map(float, step.split("x"))) for step in text.split(",")]
    except ValueError:
        pairs = [()]
    if any(len(p) != 2 for p in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not RATExSECONDS,..., as 0.5x30,1x30")
    return tuple(pairs)


def parser() -> argparse.ArgumentParser:
    """All options; those of one load or workload have None where they were not given."""
    text = "Replay one point against a running server."
    p = Parser(prog="kvtop replay", description=text, allow_abbrev=False)
    p.add_argument("--url", type=_as(server_url), required=True, help="server, http://host:port")
    p.add_argument("--model", required=True, help="model name in the requests")
    p.add_argument("--out", type=Path, required=True, help="folder of the records")
    p.add_argument("--seed", type=_whole, default=1, help="decides order, times and aborts")
    text = "of the client: auto (more when it is late) or a number to begin with (auto)"
    p.add_argument("--processes", type=_as(checked), default="auto", help=text)
    p.add_argument("--no-flush", action="store_true", help="leave the server's caches warm")
    g = p.add_argument_group("sessions")
    g.add_argument("--trace", help="a file of docs/traces.md, or builtin:agent (the default)")
    g.add_argument("--max-context", type=_whole, help="keep the leading turns that fit, tokens")
    g.add_argument("--scale-tokens", type=_number, help="every length of the trace times this")
    g.add_argument("--skip-bad", action="store_true", help="count bad lines, do not stop")
    g.add_argument("--tokenizer", type=Path, help="folder or tokenizer.json (the server's)")
    g.add_argument("--fixed-input", type=_whole, help="instead of a trace: tokens of every prompt")
    g.add_argument("--fixed-output", type=_whole, help="with it: tokens of every answer")
    g.add_argument("--fixed-sessions", type=_whole, help="with it: prompts to make (1000)")
    g = p.add_argument_group("closed loop")
    g.add_argument("--concurrency", type=_lanes, help="lanes")
    g.add_argument("--start", choices=("first_turn", "random_turn"), help="of a lane (first_turn)")
    g.add_argument("--stagger", type=_number, help="seconds: lanes start spread over this time (1)")
    g = p.add_argument_group("open loop")
    g.add_argument("--rate", type=_number, help="session starts per second")
    g.add_argument("--arrivals", choices=ARRIVALS, help="default: poisson")
    g.add_argument("--burstiness", type=_number, help="gamma: shape of the intervals, 1 is Poisson")
    g.add_argument("--steps", type=_steps, help="steps: RATExSECONDS,..., the last rate stays")
    g.add_argument("--time-scale", type=_number, help="trace: recorded intervals times this (1)")
    g.add_argument("--jitter", type=_number, help="trace: seconds over which equal stamps spread")
    g = p.add_argument_group("requests")
    g.add_argument("--api", choices=tuple(PATHS), default="chat", help="route (chat)")
    g.add_argument("--output", choices=("natural", "recorded"), help="length (natural)")
    g.add_argument("--max-output-tokens", type=_whole, default=128)
    text = "recorded think time times this (closed: 0, open: 1)"
    g.add_argument("--think-factor", type=_number, help=text)
    g.add_argument("--think-cap", type=_number, help="seconds: longest think time")
    g.add_argument("--cancel-share", type=_number, default=0.0, help="share of requests to abort")
    g.add_argument(
        "--cancel-within", type=_number, help="seconds: after a random part of these (2)"
    )
    g = p.add_argument_group("time")
    for name, value, text in (
        ("burn-in", 5, "start of traffic, not representative"),
        ("warmup", 10, "representative, not measured"),
        ("window", 60, "measured"),
        ("drain", 30, "longest wait for the last requests"),
        ("timeout", 60, "longest silence of one request"),
    ):
        g.add_argument(f"--{name}", type=_number, default=value, help=f"seconds: {text} ({value})")
    return p


def _load(a: argparse.Namespace) -> Load:
    own = {"rate": a.rate, "burstiness": a.burstiness, "steps": a.steps,
           "time_scale": a.time_scale, "jitter_s": a.jitter}  # fmt: skip
    own = {k: v for k, v in own.items() if v is not None}
    if a.concurrency and (own or a.arrivals):
        raise ValueError(
            "--concurrency is a closed loop and takes no --rate or --arrivals options; give one"
        )
    if a.concurrency:
        return a.concurrency
    if not own and not a.arrivals:
        raise ValueError("give a load: --concurrency C, --rate R or --arrivals trace")
    for name, value in (("--start", a.start), ("--stagger", a.stagger)):
        if value is not None:
            raise ValueError(f"{name} is for the lanes of --concurrency; leave it out")
    kind = a.arrivals or "poisson"
    for name in own:
        if OWN.get(name, kind) != kind:
            raise ValueError(f"{OPTIONS[name]} is for --arrivals {OWN[name]}; give both or neither")
    needs = NEEDS.get(kind, ("rate",))
    if missing := [OPTIONS[n] for n in needs if n not in own]:
        raise ValueError(f"--arrivals {kind} needs {' and '.join(missing)}; give it as well")
    if "rate" in own and "rate" not in needs:
        raise ValueError(f"--arrivals {kind} takes no --rate; leave it out")
    return OpenLoad(arrivals=kind, **own)


def _workload(a: argparse.Namespace, is_open: bool) -> Workload:
    fixed = {"input_tokens": a.fixed_input, "output_tokens": a.fixed_output,
             "sessions": a.fixed_sessions}  # fmt: skip
    fixed = {k: v for k, v in fixed.items() if v is not None}
    if fixed and (a.fixed_input is None or a.fixed_output is None):
        raise ValueError("a fixed shape needs both --fixed-input and --fixed-output; give both")
    if fixed and a.trace:
        raise ValueError("--trace and --fixed-input are two workloads; give one of them")
    if fixed and (a.max_context or a.scale_tokens or a.skip_bad):
        raise ValueError(
            "--max-context, --scale-tokens and --skip-bad are for a --trace; leave them out"
        )
    if fixed and a.api != "chat":
        raise ValueError("--fixed-input counts the chat template; leave --api completions out")
    if fixed and a.output == "natural":
        raise ValueError("--fixed-output sizes the answers; leave --output natural out")
    if a.cancel_within is not None and not a.cancel_share:
        raise ValueError("--cancel-within needs a --cancel-share of requests; give both")
    think = a.think_factor if a.think_factor is not None else float(is_open)
    if a.think_cap is not None and not think:
        raise ValueError("--think-cap caps nothing without a --think-factor; give both")
    given = {
        "trace": a.trace, "fixed": fixed or None, "start": a.start, "stagger_s": a.stagger,
        "output": "recorded" if fixed else a.output, "max_context_tokens": a.max_context,
        "scale_tokens": a.scale_tokens, "think_factor": think, "think_cap_s": a.think_cap,
        "cancel_share": a.cancel_share, "cancel_within_s": a.cancel_within,
        "max_output_tokens": a.max_output_tokens,
    }  # fmt: skip
    return Workload(id="cli", title="cli", **{k: v for k, v in given.items() if v is not None})


def read(argv: list[str] | None) -> tuple[argparse.Namespace, Load, Workload, Plan]:
    """Parse and check a command line; a wrong one is one sentence and exit status 2."""
    p = parser()
    a = p.parse_args(argv)
    try:
        load = _load(a)
        workload = _workload(a, isinstance(load, OpenLoad))
        timing = {"burn_in_s": a.burn_in, "warmup_s": a.warmup, "window_s": a.window,
                  "drain_s": a.drain, "timeout_s": a.timeout}  # fmt: skip
        plan = Plan.of(argparse.Namespace(**timing), workload)
    except ValidationError as e:
        p.error(_refusal(e.errors()[0]))
    except (ValueError, KvtopError) as e:
        field, _, rest = str(e).partition(" is ")
        p.error(f"{OPTIONS[field]} is {rest}" if field in OPTIONS else str(e))
    return a, load, workload, plan


def _refusal(error: Mapping) -> str:
    """A refused field as a sentence about its option."""
    said = error["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    names = [str(part) for part in error["loc"]]
    option = next((OPTIONS[n] for n in (".".join(names), *names[:1]) if n in OPTIONS), None)
    return f"{option} is {error['input']}, {said}" if option else said

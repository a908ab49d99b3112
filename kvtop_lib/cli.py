"""``kvtop``: the commands of the package; a fault is one sentence and exit status 1."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvtop_lib import paths
from kvtop_lib.caller import CALLER
from kvtop_lib.pack import commands as pack_commands
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.commands import trace_app

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
app.add_typer(trace_app, name="trace")
app.command("pack")(pack_commands.pack)
app.command("unpack")(pack_commands.unpack)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _served(model: str, arm: str, folder: Path):
    """A running server of an arm, its checkpoint built when it is one that we build."""
    from kvtop_lib.engine import Server
    from kvtop_lib.params import load_arm, load_model
    from kvtop_lib.step import ensure_model

    variant, what = load_arm(arm), load_model(model)
    ensure_model(what)
    return Server.launch(what, variant, folder)


@app.command()
def run(profile: Annotated[str, typer.Argument(help="A file of params/profiles.")]) -> None:
    """Measure what has changed since the last time, and render the note (`make reproduce`)."""
    command = ["make", "--no-print-directory", "reproduce", f"PROFILE={profile}"]
    here = [f"PY={sys.executable}", "READY=Makefile"]  # this environment, whatever made it
    here.append(f"CALLER={os.getpid()}")  # killed, it takes the run along
    raise typer.Exit(subprocess.run([*command, *here], cwd=paths.repo_root()).returncode)


@app.command()
def serve(
    arm: Annotated[str, typer.Argument(help="A file of params/arms.")],
    model: Annotated[str, typer.Option(help="A file of params/models.")] = "smollm2-mtp",
) -> None:
    """Serve one arm in the foreground until Ctrl-C."""
    with _served(model, arm, paths.outputs_dir() / "serve" / arm) as server:
        print(f"{arm} on {model}: {server.url}/v1 (ready after {server.startup_s:.0f} s)")
        print(f"log: {server.log_file}; Ctrl-C ends it", flush=True)
        while server.alive:
            time.sleep(0.5)
        raise KvtopError(f"the server has ended by itself; see {server.log_file}")


@app.command(context_settings={**PASS_ON, "help_option_names": []})
def replay(context: typer.Context) -> None:
    """Replay one point against a running server (options: `kvtop replay --help`)."""
    from kvtop_lib.replay.__main__ import main as replay_main

    raise typer.Exit(replay_main(context.args))


@app.command()
def note(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A run's name or folder, or published:NAME."),
    ],
    out: Annotated[Path | None, typer.Option(help="The page; default: note.html in it.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Two runs side by side.")] = False,
    declare: Annotated[
        list[str] | None, typer.Option(help="What the runs may differ in: machine, code, ...")
    ] = None,
) -> None:
    """Render the note of a run, of a published source, or of two runs (--compare)."""
    from kvtop_lib.note.command import note as render

    print(render(targets, out, compare, declare or []))


@app.command("policies")
def policies_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")] = "policies",
) -> None:
    """Set the width policies of a run against its fixed widths (notebook 55_policies)."""
    from kvtop_lib import policies, runner
    from kvtop_lib.note.command import run_folder
    from kvtop_lib.store import Run

    folder = run_folder(run).resolve()
    if not (folder / "results.jsonl").is_file():
        raise KvtopError(
            f"{folder} holds no results.jsonl; measure it: make reproduce PROFILE=policies"
        )
    policies.roles(Run(folder))  # a run without policies is refused before a kernel starts
    notebook = "55_policies.ipynb"
    print(runner.run(paths.notebooks_dir() / notebook, folder / notebook, {"run": str(folder)}))


@app.command("top")
def top_(
    url: Annotated[str, typer.Argument(help="Server.")] = "http://127.0.0.1:30000",
    once: Annotated[bool, typer.Option("--once", help="One look, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, one object per look.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    iterations: Annotated[
        Path | None, typer.Option(help="The server's iterations.jsonl; default: looked up.")
    ] = None,
) -> None:
    """Watch a running SGLang or vLLM server: requests, speed, drafting, KV, memory."""
    from kvtop_lib.top.command import top

    top(url, once=once, as_json=as_json, every_s=every, iterations=iterations)


@app.command("audit")
def audit_(
    file: Annotated[Path, typer.Argument(help="CSV of a published table.")],
    claim: Annotated[
        list[str] | None, typer.Option(help="ARM:cap=N or ARM:batch=N; may be repeated.")
    ] = None,
    speed: Annotated[
        str, typer.Option(help="Per-request speed: decode (after the first token) or e2e.")
    ] = "decode",
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Check a published throughput table: implied active requests, and what they do not support."""
    from kvtop_lib.audit import audit, report

    print(report(audit(file, claim or [], speed), as_json=as_json))


@app.command()
def lossless(
    profile: Annotated[str, typer.Argument(help="A file of params/profiles.")],
    prompts: Annotated[int, typer.Option(help="Recorded prompts, 8 at a time.", min=1)] = 50,
    every_arm: Annotated[
        bool, typer.Option("--every-arm", help="All of params/arms, not the profile's alone.")
    ] = False,
    arm: Annotated[
        list[str] | None, typer.Option(help="This arm instead; may be given several times.")
    ] = None,
) -> None:
    """Compare greedy outputs of every arm with the baseline's; status 1 when one differs."""
    from kvtop_lib import probe
    from kvtop_lib.graph import deploys
    from kvtop_lib.params import Arm, list_names, load_arm, load_model, load_profile, load_workload
    from kvtop_lib.stats.verdicts import BASELINE_AA
    from kvtop_lib.trace import load_trace

    plan = load_profile(profile)
    asked = probe.probe_prompts(load_trace(load_workload(plan.workload).trace), prompts)
    if arm:
        names = [load_arm(name).id for name in arm]
        plan = plan.model_copy(update={"arms": tuple(dict.fromkeys(("baseline", *names)))})
    elif every_arm:
        layer = load_model(plan.model).mtp is not None
        names = [a for a in list_names(Arm) if layer or not load_arm(a).draft.uses_mtp]
        plan = plan.model_copy(update={"arms": tuple(names)})
    root, results = paths.outputs_dir() / "lossless" / profile, {}
    os.environ.setdefault(CALLER, str(os.getpid()))  # one import for all servers
    for step in deploys(plan):
        results[step.arm] = probe.EXEMPT
        if load_arm(step.arm).lossless:
            folder = root / step.arm
            with _served(plan.model, step.arm, folder) as server:
                results[step.arm] = probe.probe(server.url, folder, root / "baseline", asked)
        print(f"{step.arm}: {probe.verdict(results[step.arm])}", flush=True)
    differ = [arm for arm, found in results.items() if found["mismatches"]]
    for arm in differ:
        if BASELINE_AA in results and arm != BASELINE_AA:
            print(f"{arm}: {probe.against_itself(results[arm], results[BASELINE_AA])}")
    if differ:
        raise KvtopError(f"outputs differ from the baseline's: {', '.join(differ)}")


@trace_app.command("record")
def trace_record(
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    model: Annotated[str, typer.Option(help="A file of params/models.")] = "smollm2-mtp",
    sessions: Annotated[int, typer.Option(min=1)] = 560,
    name: Annotated[str, typer.Option(help="Name of the trace.")] = "agent",
    seed: Annotated[int, typer.Option(help="Seed of the plan.")] = 1,
) -> None:
    """Serve the baseline and record an agent trace from it."""
    from kvtop_lib.trace.record_cli import record_agent

    with _served(model, "baseline", paths.outputs_dir() / "serve" / "record") as server:
        record_agent(server.url, out, model, name=name, sessions=sessions, seed=seed)


def main() -> None:
    """Entry point of the console script."""
    try:
        code = app(standalone_mode=False)
    except KvtopError as e:
        print(f"kvtop: {e}", file=sys.stderr)
        sys.exit(1)
    except OSError as e:
        print(f"kvtop: {e.filename or 'a file'}: {e.strerror or e}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as e:
        show = getattr(e, "show", None)  # a wrong command line, said by the parser itself
        if show is None:
            raise
        show()
        sys.exit(2)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()

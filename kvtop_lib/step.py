"""One step of a run, as the Makefile calls it: ``python -m kvtop_lib.step PROFILE STEP``.

STEP is ``keys`` (write changed keys, the graph's variables and the plan), ``manifest``,
``<arm>/deploy``, ``<arm>/b<k>``, ``derive``, ``30_acceptance``, ``40_iterations``, ``note``, or
``retry`` (ask for the points that failed). A step whose result was made with the wanted key does
nothing, whatever the file times say. An interrupted block goes on in another launch: what it has
measured stays. Records of an earlier measurement are moved to ``<run>/superseded/``, never edited.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from kvtop_lib import graph, keys, paths, unchanged
from kvtop_lib.caller import alone, bound_to
from kvtop_lib.digest import write_if_changed
from kvtop_lib.graph import Step
from kvtop_lib.params import Model, Profile, load_model, load_profile
from kvtop_lib.plan import plan
from kvtop_lib.terms import DEFAULT_PROFILE, KvtopError

BEGUN = "begun.key"  # in a block's folder: the key that its points are measured under
RETRY = "retry"  # in a block's folder: loads that are asked for again


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, flush=True)


def update_keys(profile: Profile, run: Path) -> None:
    """Write the keys that have changed, and say which measurements they cost."""
    read, written = keys.roots(profile), [run / "keys", run / "graph.mk", run / "plan.json"]
    before = unchanged.seen(read)
    for name, reasons in keys.update(profile, run).items():
        if name in profile.arms:
            say(f"{name}: to be measured again, changed: {', '.join(reasons)}")
    write_if_changed(run / "graph.mk", graph.variables(profile))
    write_if_changed(run / "plan.json", json.dumps(plan(profile), indent=1) + "\n")
    unchanged.remember(run, read, written, before)


def ensure_model(model: Model) -> None:
    """Build a model's checkpoint when it is one that we build (instant when it is there).

    Raises
    ------
    KvtopError
        When the builder fails.
    """
    if model.builder:
        if not (model.path / "config.json").is_file():
            say(f"  building the checkpoint of {model.id!r} first")
        command = [sys.executable, "-m", f"kvtop_lib.models.{model.builder}"]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise KvtopError(f"the checkpoint of {model.id!r} could not be built")


def given(step: Step, profile: Profile, run: Path) -> dict[str, object]:
    """Parameters of a step's notebook."""
    if step.notebook == "10_deploy":
        return {"profile": profile.id, "arm": step.arm, "folder": str(run / step.folder)}
    if step.notebook == "20_sweep":
        key = step.wanted(run)
        common = {"profile": profile.id, "arm": step.arm, "block": step.block}
        return {**common, "run": str(run), "key": key}
    return {"run": str(run)}


def execute(step: Step, profile: Profile, run: Path) -> None:
    """Run a step's notebook unless its result is current.

    Raises
    ------
    KvtopError
        As `kvtop_lib.runner.run` and `ensure_model`.
    """
    from kvtop_lib import runner

    target = step.target(run)
    if step.done(run):
        target.touch()  # a file time was changed, not the content
        return
    everything = graph.steps(profile)
    place = f"[{everything.index(step) + 1}/{len(everything)}] {step.name.replace('/', ', ')}"
    left_s = graph.left_s(profile, run)
    whole = graph.minutes(sum(left_s.values()))
    say(f"{place}: {graph.minutes(left_s[step.name])}; whole run: {whole} left")
    wanted, resumed = step.wanted(run), False
    if step.folder != ".":
        begun = run / step.folder / BEGUN
        if step.block and begun.is_file() and begun.read_text().strip() == wanted:
            resumed = True
            say("  goes on where it stopped")
        elif old := graph.set_aside(run, run / step.folder):
            say(f"  earlier records kept in {old.relative_to(run)}")
        if step.block:
            write_if_changed(begun, wanted + "\n")
        ensure_model(load_model(profile.model))
    began = time.monotonic()
    runner.run(paths.notebooks_dir() / f"{step.notebook}.ipynb", target, given(step, profile, run))
    if not resumed:
        step.note_time(run, time.monotonic() - began)
    write_if_changed(target.with_suffix(".key"), wanted + "\n")
    if step.block:
        (run / step.folder / RETRY).unlink(missing_ok=True)


def ask_again(profile: Profile, run: Path) -> None:
    """Ask for every current point that is not ``ok``: its block goes on in another launch."""
    from kvtop_lib.store import Run

    update_keys(profile, run)
    results = Run(run).results()
    bad = results[results["status"] != "ok"]
    planned = {(s.arm, s.block): s for s in graph.blocks(profile)}
    asked = False
    for (arm, block), points in bad.groupby(["arm", "block"]):
        if (step := planned.get((arm, int(block)))) and step.done(run):
            loads = points["load"].tolist()
            (run / step.folder / RETRY).write_text("\n".join(loads) + "\n", encoding="utf-8")
            step.target(run).unlink()
            say(f"{step.name}: {', '.join(loads)} to be measured again")
            asked = True
    if not asked:
        why = "no point has been measured yet" if results.empty else "every measured point is ok"
        if not bad.empty:
            why = "points that are not ok are all in blocks that have not ended or are not planned"
        say(f"nothing to measure again: {why}")


def derive_all(profile: Profile, run: Path) -> None:
    """Compute all points anew from their raw records; a changed one gets a new result line."""
    from kvtop_lib import metrics
    from kvtop_lib.store import Run, jsonable

    records = Run(run)
    latest = {line["line"]: line for line in records.lines()}
    for row in records.results().to_dict("records"):
        if not (records.folder(row) / "recording.json").is_file():
            continue  # it failed before there was anything to derive from
        old = {k: v for k, v in latest[row["line"]].items() if k != "line"}
        point = metrics.derive(records.folder(row), targets=profile.targets)
        if jsonable(point) != jsonable(old):
            line = records.append_result(point)
            say(f"{row['arm']} b{row['block']} {row['load']}: derived anew, line {line}")
    write_if_changed(run / "derive.key", (run / "keys" / "derive.key").read_text())


def render(profile: Profile, run: Path) -> None:
    """Render the note of a run."""
    from kvtop_lib import note

    out = (paths.outputs_dir() if profile.id == DEFAULT_PROFILE else run) / "note.html"
    say(f"note: {note.render_note(run, out)}")
    for sentence in note.standing(run):
        say(f"  {sentence}")


def do(profile_name: str, name: str, caller: int | None = None) -> None:
    """Do one step; errors as in the functions above, and for a step that the run does not have.

    The end of process `caller` interrupts it.
    """
    profile = load_profile(profile_name)
    run = paths.runs_dir().resolve() / profile.id
    with bound_to(caller), alone(run, caller):
        _do(profile, run, name)


def _do(profile: Profile, run: Path, name: str) -> None:
    known = {step.name: step for step in graph.steps(profile)}
    if name == "keys":
        update_keys(profile, run)
    elif name == "manifest":
        from kvtop_lib import provenance

        graph.set_aside(run, run / "manifest.json")
        provenance.write_manifest(profile, run, keys.fingerprints(profile, run))
    elif name == "derive":
        derive_all(profile, run)
        (run / "derive.key").touch()
    elif name == "note":
        render(profile, run)
    elif name == "retry":
        ask_again(profile, run)
    elif name in known:
        execute(known[name], profile, run)
    else:
        raise KvtopError(f"run {profile.id!r} has no step {name!r}; it has {', '.join(known)}")


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 with one message on failure, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.step")
    parser.add_argument("--caller", type=int, help="process whose end ends the step")
    parser.add_argument("profile")
    parser.add_argument("step")
    args = parser.parse_args(argv)
    try:
        do(args.profile, args.step, args.caller)
    except KvtopError as e:
        print(f"kvtop: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"kvtop: {e.filename or 'a file'}: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"kvtop: {args.step} was interrupted; what was measured is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

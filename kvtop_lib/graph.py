"""The steps of a run, in order, with what they need, make and take."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvtop_lib.digest import digest, file_digest
from kvtop_lib.params import Profile
from kvtop_lib.plan import ANALYSIS_S, DEPLOY_S, lifetimes
from kvtop_lib.store import read_json, write_json

BASELINE = "baseline"


@dataclass(frozen=True)
class Step:
    """One rule of the graph: a notebook, the key it depends on, and the folder it fills.

    Attributes
    ----------
    name : ``<arm>/deploy``, ``<arm>/b<k>``, or an analysis notebook's name.
    notebook : name of the notebook.
    key : name of the key file.
    folder : relative to the run.
    estimate_s : expected time, seconds.
    """

    name: str
    notebook: str
    key: str
    folder: str
    estimate_s: float

    @property
    def arm(self) -> str:
        """Arm of a deployment or a block."""
        return self.folder.partition("/")[0]

    @property
    def block(self) -> int | None:
        """Number of the block, from 1; None for other steps."""
        return int(self.folder.rpartition("/b")[2]) if self.notebook == "20_sweep" else None

    def target(self, run: Path) -> Path:
        """The executed notebook."""
        return run / self.folder / f"{self.notebook}.ipynb"

    def wanted(self, run: Path, own: str | None = None) -> str:
        """Key that the target must have been made with, and with what it reads of the run.

        `own` is the step's key; by default that of the run's ``keys`` folder.
        """
        if own is None:
            own = (run / "keys" / f"{self.key}.key").read_text(encoding="utf-8").strip()
        reads = None
        if self.notebook == "10_deploy" and self.arm != BASELINE:
            reads = run / BASELINE / "deploy" / "lossless.json"
        elif self.notebook not in ("10_deploy", "20_sweep"):
            reads = run / "results.jsonl"
        return digest([own, file_digest(reads)]) if reads and reads.is_file() else own

    def done(self, run: Path, own: str | None = None) -> bool:
        """Whether the target exists and was made with the key that is `wanted`."""
        made = run / self.folder / f"{self.notebook}.key"
        try:
            return self.target(run).is_file() and made.read_text().strip() == self.wanted(run, own)
        except OSError:
            return False

    @property
    def kind(self) -> str:
        """Steps of one kind take about as long as planned, or all longer: analyses are one kind."""
        return self.notebook if self.folder != "." else "analysis"

    def note_time(self, run: Path, took_s: float) -> None:
        """Record the time of a whole execution, seconds."""
        write_json(self._time_file(run), {"took_s": took_s})

    def took_s(self, run: Path) -> float | None:
        """Time of the finished step; None when it is not done or went on from an interruption."""
        file = self._time_file(run)
        return read_json(file)["took_s"] if self.done(run) and file.is_file() else None

    def _time_file(self, run: Path) -> Path:
        return self.target(run).with_suffix(".took.json")


def deploys(profile: Profile) -> list[Step]:
    """One probe deployment per arm, the baseline first: the others are compared with it."""
    arms = [BASELINE, *(a for a in profile.arms if a != BASELINE)]
    return [Step(f"{a}/deploy", "10_deploy", f"{a}.deploy", f"{a}/deploy", DEPLOY_S) for a in arms]


def blocks(profile: Profile) -> list[Step]:
    """Server lifetimes in the order of the plan (`kvtop_lib.plan`)."""
    return [
        Step(place, "20_sweep", x["arm"], place, x["expected_s"])
        for x in lifetimes(profile)
        for place in [f"{x['arm']}/b{x['block']}"]
    ]


def analyses() -> list[Step]:
    """Notebooks that read records and need no server."""
    names = ("30_acceptance", "40_iterations", "50_decision")
    return [Step(n, n, n, ".", ANALYSIS_S) for n in names]


def steps(profile: Profile) -> list[Step]:
    """All steps of a run that execute notebooks, but the note's, in the order of execution."""
    return [*deploys(profile), *blocks(profile), *analyses()]


def set_aside(run: Path, path: Path) -> Path | None:
    """Move `path` to ``<run>/superseded/<its name>-<time>``; None when there is nothing."""
    if not path.exists():
        return None
    name = path.relative_to(run).as_posix().replace("/", "-")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    target = run / "superseded" / f"{name}-{stamp}"
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    return target


def left_s(profile: Profile, run: Path) -> dict[str, float]:
    """Expected time of each step that is not done, by name, seconds.

    The plan's estimate, times what the finished steps of the same kind took over what was planned
    for them: the plan knows no machine.
    """
    planned_s, took_s = Counter(), Counter()
    for step in steps(profile):
        if (measured := step.took_s(run)) is not None:
            planned_s[step.kind] += step.estimate_s
            took_s[step.kind] += measured
    return {
        s.name: s.estimate_s * (took_s[s.kind] / planned_s[s.kind] if planned_s[s.kind] else 1.0)
        for s in steps(profile)
        if not s.done(run)
    }


def minutes(seconds: float) -> str:
    """``about 3 min``, ``less than a minute``."""
    return f"about {seconds / 60:.0f} min" if seconds >= 50 else "less than a minute"


def variables(profile: Profile) -> str:
    """Variables of a run for Make: arms, and blocks in the order of measurement."""

    def line(name: str, values: Iterable[str]) -> str:
        return f"{name} := {' '.join(values)}\n"

    return line("ARMS", (s.arm for s in deploys(profile))) + line(
        "BLOCKS", (s.folder for s in blocks(profile))
    )

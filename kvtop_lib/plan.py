"""The plan of a run: which server lifetime comes when, how long it takes, what of it is measured.

Written to ``<run>/plan.json`` before anything runs. ``python -m kvtop_lib.plan PROFILE ...``
prints the arithmetic of profiles, ``--docs`` the page ``docs/profiles.md``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtop_lib.params import Profile, list_names, load_profile
from kvtop_lib.params.shape import Load, load_name
from kvtop_lib.terms import SCHEMA, KvtopError

DEPLOY_S = 60.0  # launch, probe, end
LAUNCH_S = 30.0  # of a block: launch and end
ANALYSIS_S = 30.0
ANALYSES = ("30_acceptance", "40_iterations", "50_decision", "90_note")
DRAIN_SHARE = 0.5  # of the longest drain: it ends when the window's requests have


def order(arms: Sequence[str], block: int) -> list[str]:
    """Arms of one block in the order of their launches.

    Blocks come in pairs, a row and its reverse (A B C, C B A): over a pair every arm has the same
    mean position, so a steady drift cancels. Each pair starts at another arm, and over as many
    pairs as there are arms every arm has held every position equally often (a Latin square). The
    order of a block does not depend on how many follow, so a run can be extended.
    """
    n, pair = len(arms), (block - 1) // 2
    stride = next(s for s in range(max(1, round(0.618 * n)), n + 1) if math.gcd(s, n) == 1)
    start = pair * stride % n
    row = [*arms[start:], *arms[:start]]
    return row if block % 2 else row[::-1]


@dataclass(frozen=True)
class Size:
    """What a profile costs, computed from its parameters.

    Attributes
    ----------
    deploys, blocks, points : counts.
    deploy_s, launch_s, point_s, analysis_s : expected time of each kind in total, seconds.
    window_s : time inside windows, seconds.
    """

    deploys: int
    blocks: int
    points: int
    deploy_s: float
    launch_s: float
    point_s: float
    analysis_s: float
    window_s: float

    @property
    def total_s(self) -> float:
        """Expected time of a run, seconds; installation not included."""
        return self.deploy_s + self.launch_s + self.point_s + self.analysis_s

    @property
    def window_share(self) -> float:
        """Part of the time that enters estimates."""
        return self.window_s / self.total_s


def expected_point_s(profile: Profile, load: Load) -> float:
    """Expected time of one point, seconds."""
    whole = profile.burn_in_s + profile.warmup_s + profile.window_of(load)
    return whole + DRAIN_SHARE * profile.drain_s


def size(profile: Profile) -> Size:
    """What a run of the profile costs on a machine where a launch takes `LAUNCH_S`."""
    arms = len(profile.arms)
    points = [load for a in profile.arms for load in profile.loads_of(a)] * profile.blocks
    return Size(
        deploys=arms,
        blocks=arms * profile.blocks,
        points=len(points),
        deploy_s=arms * DEPLOY_S,
        launch_s=arms * profile.blocks * LAUNCH_S,
        point_s=sum(expected_point_s(profile, load) for load in points),
        analysis_s=len(ANALYSES) * ANALYSIS_S,
        window_s=sum(map(profile.window_of, points)),
    )


def lifetimes(profile: Profile) -> list[dict[str, Any]]:
    """Server lifetimes in the order of measurement.

    Returns
    -------
    list of dict
        ``position`` (from 1), ``arm``, ``block``, ``workload``, ``loads`` (names, in order),
        ``seed`` (of sessions, stagger and arrivals: the block's, never the arm's) and
        ``expected_s``.
    """
    pairs = [(a, k) for k in range(1, profile.blocks + 1) for a in order(profile.arms, k)]
    return [
        {
            "position": i,
            "arm": arm,
            "block": block,
            "workload": profile.workload,
            "loads": [load_name(load) for load in profile.loads_of(arm)],
            "seed": profile.seed + block - 1,
            "expected_s": LAUNCH_S
            + sum(expected_point_s(profile, load) for load in profile.loads_of(arm)),
        }
        for i, (arm, block) in enumerate(pairs, 1)
    ]


def plan(profile: Profile) -> dict[str, Any]:
    """Content of ``plan.json``: the profile's name, its size, and `lifetimes`."""
    costs = size(profile)
    return {
        "schema": SCHEMA,
        "profile": profile.id,
        "expected_s": costs.total_s,
        "window_share": round(costs.window_share, 4),
        "lifetimes": lifetimes(profile),
    }


def row(profile: Profile) -> str:
    """One profile as a row of the table in ``docs/profiles.md``."""
    s = size(profile)
    loads = ", ".join(load_name(load) for load in profile.loads)
    if profile.only:
        loads += "; " + "; ".join(
            f"{a}: {', '.join(load_name(x) for x in v)}" for a, v in profile.only.items()
        )
    windows = f"{profile.window_s:g}"
    if profile.windows:
        windows += "; " + ", ".join(f"{k}: {v:g}" for k, v in profile.windows.items())
    parts = (s.deploy_s, s.launch_s, s.point_s, s.analysis_s)
    spent = " + ".join(f"{x / 60:.1f}" for x in parts)
    return (
        f"| `{profile.id}` | {len(profile.arms)} | {loads} | {profile.blocks} | {s.blocks} | "
        f"{s.points} | {windows} | {spent} = **{s.total_s / 60:.0f}** | "
        f"{s.window_share:.0%} |"
    )


HEAD = """| profile | arms | loads | blocks | launches | points | window (s) \
| minutes: deploy + launch + points + analyses | in windows |
|---|---:|---|---:|---:|---:|---:|---|---:|"""

PAGE = f"""# Profiles and what they cost

Made by `python -m kvtop_lib.plan --docs` from `params/profiles`; edit those, not this page.

Minutes are arithmetic, not a measurement: {DEPLOY_S:g} s per deployment that probes an arm,
{LAUNCH_S:g} s per launch of a block, {ANALYSIS_S:g} s per analysis, and per point burn-in,
warm-up, window and {DRAIN_SHARE:.0%} of the longest drain. They fit the embedded model on two
cores; installation comes on top. `<run>/plan.json` holds the order of a run before it starts.

"""


def docs(profiles: Sequence[Profile]) -> str:
    """Text of ``docs/profiles.md``."""
    words = [f"- `{p.id}`: {p.title}. {' '.join(p.description.split())}" for p in profiles]
    return "\n".join([PAGE + HEAD, *map(row, profiles), "", *words, ""])


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 with one sentence for a profile that does not load."""
    parser = argparse.ArgumentParser(prog="python -m kvtop_lib.plan", description=__doc__)
    parser.add_argument("profile", nargs="*", help="default: all of params/profiles")
    parser.add_argument("--docs", action="store_true", help="print docs/profiles.md")
    args = parser.parse_args(argv)
    try:
        profiles = [load_profile(n) for n in args.profile or list_names(Profile)]
    except KvtopError as e:
        print(f"kvtop: {e}", file=sys.stderr)
        return 1
    if args.docs:
        print(docs(profiles), end="")
        return 0
    print(HEAD, *map(row, profiles), sep="\n")
    for profile in profiles if args.profile else []:
        print()
        for step in lifetimes(profile):
            loads = ", ".join(step["loads"])
            print(f"{step['position']:3} {step['arm']} b{step['block']}: {loads}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

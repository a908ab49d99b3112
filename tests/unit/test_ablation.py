"""A cause is named only when its pair moves the result and the others do not."""

from __future__ import annotations

import pandas as pd
import pytest

from kvtop_lib.ablation import ISOLATIONS, Isolation, ablations, causes, named
from kvtop_lib.params import Arm, list_names, load_arm
from kvtop_lib.terms import KvtopError

PAIRS = (
    Isolation("the cap", "cap"),
    Isolation("memory", "kv"),
    Isolation("verification", "on", "off"),
)


def summary(**arms) -> pd.DataFrame:
    """Arm -> (low, high); n and ratio follow."""
    rows = [
        {"arm": a, "workload": "w", "c": 32, "n": 4, "ratio": (lo * hi) ** 0.5, "low": lo,
         "high": hi}
        for a, (lo, hi) in arms.items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["arm", "workload", "c", "n", "ratio", "low", "high"])


def conclude(base: dict, off: dict, effect: str = "lower") -> str:
    found = {"baseline": summary(**base), "off": summary(**off)}
    return named(ablations(found, 32, "w", effect, PAIRS))


LEVEL, DOWN, UP = (0.97, 1.03), (0.80, 0.90), (1.10, 1.20)


def test_a_cause_is_named_when_it_alone_moves_the_result():
    text = conclude({"cap": LEVEL, "kv": LEVEL}, {"on": DOWN})
    assert text.startswith("verification: its pair moves the result, the other 2 measured do not")


@pytest.mark.parametrize(
    ("base", "off", "said"),
    [
        ({"cap": DOWN, "kv": LEVEL}, {"on": DOWN}, "2 pairs move the result"),
        ({"cap": LEVEL, "kv": LEVEL}, {"on": LEVEL}, "no isolating pair moves"),
        ({"cap": LEVEL, "kv": LEVEL}, {"on": UP}, "no isolating pair moves"),  # the other way
        ({}, {"on": DOWN}, "only one cause's isolating pair was measured; 2 of 3"),
        ({}, {}, "no isolating pair was measured"),
    ],
)
def test_otherwise_no_cause_is_named(base, off, said):
    text = conclude(base, off)
    assert text.startswith("no ") and said in text


def test_two_pairs_of_one_cause_are_one_cause():
    pairs = (Isolation("admission: a", "cap"), Isolation("admission: b", "cap2"), PAIRS[1])
    found = {"baseline": summary(cap=DOWN, cap2=DOWN, kv=LEVEL)}
    text = named(ablations(found, 32, "w", "lower", pairs))
    assert text.startswith("admission: a; admission: b: 2 of its pairs move the result")
    found = {"baseline": summary(cap=DOWN, cap2=LEVEL)}
    text = named(ablations(found, 32, "w", "lower", pairs))
    assert text.startswith("no cause is named: only one cause's isolating pair was measured")


def test_what_bounds_the_cost_names_nothing_and_is_said():
    """Drafting that never yields is slower at any load; that must not hide what the cause is."""
    bounds = (
        Isolation("cost: no draft accepted (simulated)", "none", bound=True),
        Isolation("cost: every draft accepted (simulated)", "all", bound=True),
    )
    found = {"baseline": summary(cap=LEVEL, none=DOWN, all=UP), "off": summary(on=DOWN)}
    text = named(ablations(found, 32, "w", "lower", (*PAIRS, *bounds)))
    assert text.startswith("verification: its pair moves the result, the other 1 measured do not")
    assert text.endswith(
        "; with no draft accepted (simulated): less than the baseline"
        "; with every draft accepted (simulated): more than the baseline"
    )
    assert "1 of 3 isolating pairs were not measured" in text, "bounds are not counted"


def test_every_shipped_pair_is_of_shipped_arms():
    arms = {a for i in ISOLATIONS for a in (i.arm, i.reference)}
    assert arms <= set(list_names(Arm))
    simulated = {a for a in arms if not load_arm(a).lossless}
    assert simulated == {i.arm for i in ISOLATIONS if i.bound}


def test_pairs_that_were_not_measured_are_said():
    text = conclude({"cap": LEVEL}, {"on": DOWN})
    assert text.startswith("verification") and "1 of 3 isolating pairs were not measured" in text


def test_one_block_without_an_a_a_pair_names_nothing():
    one = summary(cap=(0.9, 0.9), kv=(1.0, 1.0)).assign(low=float("nan"), high=float("nan"))
    table = ablations({"baseline": one}, 32, "w", "lower", PAIRS)
    assert table.verdict.tolist() == ["unknown", "unknown", "not measured"]
    assert "do not tell a change from noise" in named(table)


def test_nothing_to_explain_is_refused():
    with pytest.raises(KvtopError, match="no cause to be named"):
        ablations({}, 32, "w", "none", PAIRS)


def test_causes_of_a_run_by_hand():
    """At 32 lanes the arm loses a fifth; so does drafting in the same deployment, nothing else."""
    rate = {"baseline": 100, "mtp": 80, "cap": 100, "kv": 101, "off": 100, "on": 80}
    off = {1: 1.0, 2: 1.005, 3: 0.995}  # launches differ by half a percent, in turn
    rows = [
        (arm, 32, b, x * off[1 + (b + i) % 3])
        for i, (arm, x) in enumerate(rate.items())
        for b in (1, 2, 3)
    ]
    rows += [("baseline", 1, b, 100) for b in (1, 2, 3)]
    points = pd.DataFrame(rows, columns=["arm", "c", "block", "output_tok_s"])
    points = points.assign(workload="w", status="ok", line=range(len(points)))
    (row,) = causes(points, PAIRS).to_dict("records")
    assert (row["arm"], row["c"], row["effect"]) == ("mtp", 32, "lower")
    assert row["conclusion"].startswith("verification: its pair moves the result")
    assert causes(points[points.arm.isin(["baseline", "mtp"])], PAIRS).empty

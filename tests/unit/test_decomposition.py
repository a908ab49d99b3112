"""Factors of a ratio, against a schedule worked out by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from kvtop_lib import decomposition as d
from kvtop_lib.store import Run, write_json
from kvtop_lib.terms import KvtopError


def iterations(rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["t_s", "dur_s", "mode", "bs", "committed_tokens"])


# window [10, 20): two decode iterations of 2 s with 2 and 4 requests, one prefill of 3 s; those
# that end before 10 or at 20 and later do not count
BASE = iterations(
    [
        (7.0, 2.0, "decode", 4, 4),
        (9.5, 2.0, "decode", 2, 2),
        (11.5, 3.0, "prefill", 1, 1),
        (14.5, 2.0, "decode", 4, 4),
        (18.0, 2.0, "decode", 4, 4),
    ]
)
# five verify iterations of 1.5 s with 3 requests that commit 2, 2 and 1
DRAFTS = iterations([(10 + 1.6 * i, 1.5, "verify", 3, 5) for i in range(5)])


def test_the_factors_of_a_point_by_hand():
    base, arm = d.factors(BASE, 10, 20), d.factors(DRAFTS, 10, 20)
    assert base == pytest.approx(
        {"acceptance": 1, "iteration_time": 2, "batch": 3, "busy_share": 0.4, "tok_s": 0.6}
    )
    assert arm == pytest.approx(
        {"acceptance": 5 / 3, "iteration_time": 1.5, "batch": 3, "busy_share": 0.75, "tok_s": 2.5}
    )


def test_log_contributions_add_up_and_the_rest_is_shown():
    base, arm = d.factors(BASE, 10, 20), d.factors(DRAFTS, 10, 20)
    parts = d.ratio(arm, base, measured=2.5 / 0.6 * 1.01)  # clients saw 1 % more
    assert parts["acceptance"] == pytest.approx(math.log(5 / 3))
    assert parts["iteration_time"] == pytest.approx(math.log(2 / 1.5))
    assert parts["batch"] == 0 and parts["busy_share"] == pytest.approx(math.log(0.75 / 0.4))
    assert parts["residual"] == pytest.approx(math.log(1.01)) and d.explained(parts)
    assert sum(parts[k] for k in (*d.FACTORS, "residual")) == pytest.approx(parts["log_ratio"])
    assert not d.explained(d.ratio(arm, base, measured=2.5 / 0.6 * 1.03))


def test_by_load_pairs_within_blocks():
    base, arm = d.factors(BASE, 10, 20), d.factors(DRAFTS, 10, 20)
    at = {"workload": "w", "c": 4}
    points = pd.DataFrame(
        [
            {"arm": "baseline", "block": 1, "output_tok_s": 6, **at, **base},
            {"arm": "baseline", "block": 2, "output_tok_s": 6, **at, **base},
            {"arm": "mtp", "block": 1, "output_tok_s": 25, **at, **arm},
            {"arm": "mtp", "block": 3, "output_tok_s": 99, **at, **arm},  # no pair
        ]
    )
    (row,) = d.by_load(points).to_dict("records")
    assert (row["arm"], row["n"], row["explained"]) == ("mtp", 1, True)
    assert row["log_ratio"] == pytest.approx(math.log(25 / 6))
    assert d.by_load(points[points.arm == "baseline"]).empty


def test_the_points_of_a_run_are_read_with_their_windows(tmp_path):
    run = Run(tmp_path / "run")
    for arm, table in (("baseline", BASE), ("mtp", DRAFTS), ("other", None)):
        folder = run.point_dir(arm, 1, "w", "c4")
        folder.mkdir(parents=True)
        write_json(folder / "recording.json", {"window": {"w0_s": 10.0, "w1_s": 20.0}})
        if table is not None:
            table.to_parquet(folder / "iterations.parquet")
        line = {"arm": arm, "block": 1, "workload": "w", "load": "c4", "c": 4, "attempt": 1}
        run.append_result({**line, "status": "ok", "output_tok_s": 6.0})
    points = d.of_run(run)
    assert points.arm.tolist() == ["baseline", "mtp"]
    assert points.tok_s.tolist() == pytest.approx([0.6, 2.5])
    assert d.by_load(points).busy_share.tolist() == pytest.approx([math.log(0.75 / 0.4)])


def test_a_table_that_is_not_the_recorders_is_refused():
    with pytest.raises(KvtopError, match="without dur_s, bs"):
        d.factors(BASE.drop(columns=["dur_s", "bs"]), 10, 20)
    with pytest.raises(KvtopError, match="nothing to decompose"):
        d.factors(BASE, 100, 200)

"""Width policies against fixed widths, on tables worked out by hand."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from kvtop_lib import iterations, policies
from kvtop_lib.policies.noise import NOT_MEASURED
from kvtop_lib.stats import Components, Floor
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import policies_run as truth  # noqa: E402

ARM, TITLE = "mtp_controller", "Controller"
# Only the controller's launches differ, by +-d in log. Among A arms the variance between launches
# comes out as 2 d^2 / A with A - 1 degrees of freedom, and over two blocks that of a log ratio is
# as large. Four arms: standard error d / sqrt(2), Student's t of 3 degrees 3.182446.
HALF = 3.182446 * truth.DELTA / math.sqrt(2)


def run(folder: Path, manifest: dict) -> Run:
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Run(folder)


def compared(tmp_path, points: pd.DataFrame, loads=truth.LOADS):
    """`by_load`, `over_range`, the noise and the claim about the controller."""
    roles = policies.roles(run(tmp_path, truth.manifest()))
    noise = policies.Noise.of(points)
    against = policies.by_load(points, roles, loads, noise)
    ranged = policies.over_range(points, roles, loads, noise)
    return against, ranged, noise, policies.claim(against, ranged, ARM, noise)


def with_rates(**changed) -> dict:
    """The rates of the data, the controller's changed at a load (``c8=340``)."""
    own = truth.TOK_S[ARM] | {int(k[1:]): float(v) for k, v in changed.items()}
    return truth.TOK_S | {ARM: own}


def of(frame: pd.DataFrame, arm: str = ARM) -> pd.DataFrame:
    return frame[frame["arm"] == arm]


def test_roles_come_from_what_the_arms_say(tmp_path):
    drafts = truth.DRAFTS | {
        "mtp_width_off": truth.MTP | {"width": 2, "widths": [1, 2], "policy": "fixed:1"},
        "mtp_adaptive": truth.THREE | {"policy": "sglang"},
        "mtp_ngram": truth.THREE | {"method": "mtp_ngram", "policy": "goodput"},
        "ngram": {"method": "ngram", "width": 4},
        "baseline_aa": {"method": "none", "width": 1},
        "baseline_cap": {"method": "none", "width": 1},
    }
    manifest = truth.manifest(drafts)
    manifest["arms"]["baseline_cap"]["server_args"] = {"max-running-requests": 16}
    found = policies.roles(run(tmp_path, manifest))
    assert {a: (r.kind, r.widths) for a, r in found.items()} == {
        "baseline": ("fixed", (1,)), "mtp_w2": ("fixed", (2,)), "mtp_w4": ("fixed", (4,)),
        "mtp_controller": ("policy", (1, 2, 4)), "mtp_width_off": ("held", (1,)),
        "mtp_adaptive": ("policy", (1, 2, 4)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "said"), [((ARM,), "no arm that chooses"), (list(truth.DRAFTS)[:3], "no arm of a")]
)
def test_a_run_without_both_is_refused(tmp_path, left_out, said):
    drafts = {a: d for a, d in truth.DRAFTS.items() if a not in left_out}
    with pytest.raises(KvtopError, match=f"{said}.*measure the profile 'policies'"):
        policies.roles(run(tmp_path, truth.manifest(drafts)))


def test_the_shipped_profile_has_the_roles(tmp_path):
    from kvtop_lib.engine.command import server_command
    from kvtop_lib.params import load_arm, load_model, load_profile
    from kvtop_lib.plan import size

    profile = load_profile("policies")
    arms = {a: load_arm(a).model_dump(mode="json") for a in profile.arms}
    found = policies.roles(run(tmp_path, {"arms": arms}))
    assert {r.policy for r in found.values() if r.kind == "policy"} == {
        "table", "goodput", "sglang"
    }  # fmt: skip
    assert {r.widths for r in found.values() if r.kind == "fixed"} == {(1,), (2,), (4,)}
    assert profile.loads_of("baseline_aa") == [4, 32] and profile.blocks == 2
    assert size(profile).total_s <= 45 * 60
    told = server_command(load_model(profile.model), load_arm("mtp_table"), 8000).env["KVTOP_DRAFT"]
    assert json.loads(told) == {
        "sources": ["mtp"], "widths": [1, 2, 4], "policy": "table", "table": {"1": 2, "4": 1}
    }  # fmt: skip


def test_a_controller_within_noise_everywhere(tmp_path):
    against, ranged, _, claim = compared(tmp_path, truth.points())
    own = of(against)
    assert own["best"].tolist() == ["mtp_w2", "baseline", "baseline"]
    assert own["mean"].tolist() == pytest.approx([121 / 120, 0.99, 0.9875])
    assert own["low"].tolist() == pytest.approx(
        [x * math.exp(-HALF) for x in (121 / 120, 0.99, 0.9875)], rel=1e-6
    )
    assert own["verdict"].tolist() == ["none"] * 3 and own["n"].tolist() == [2] * 3
    assert own["values"].iloc[1] == pytest.approx([0.99 * math.exp(0.01), 0.99 * math.exp(-0.01)])
    assert of(against, "baseline")["verdict"].tolist() == ["lower", "best", "best"]

    # three loads of two launches are no more than two launches: the interval is as wide
    whole = of(ranged).set_index("other")
    mean = (1.21 * 0.99 * 0.9875) ** (1 / 3)  # over 100, 400, 800
    assert whole.loc["baseline", "ratio"] == pytest.approx(mean)
    assert whole.loc["baseline", "low"] == pytest.approx(mean * math.exp(-HALF), rel=1e-6)
    assert whole["verdict"].tolist() == ["higher"] * 3

    assert (claim.every, claim.whole, claim.holds) == (True, True, True)
    text = str(claim)
    assert text.startswith(f"{TITLE}: the claim holds. Within noise of the best fixed width at")
    assert "each of 3 loads (c = 1 (+0.8 %), c = 8 (-1.0 %), c = 32 (-1.2 %))" in text
    low = 100 * (0.9875 * math.exp(-HALF) - 1)
    assert f"the lowest interval reaches down to {low:+.1f} %" in text
    assert "Over all loads better than Baseline (+5.8 %, interval" in text


def test_a_controller_that_stays_behind_at_one_load(tmp_path):
    against, _, _, claim = compared(tmp_path, truth.points(with_rates(c8=340)))
    assert of(against)["verdict"].tolist() == ["none", "lower", "none"]
    assert (claim.every, claim.holds) == (False, False)
    text = str(claim)
    assert "the claim does not hold. Lower than the best fixed width at c = 8 (-15.0 %)." in text
    # (1.21 x 0.85 x 0.9875) ^ (1/3) = 1.0052: not told from the baseline, better than the others
    assert claim.whole is None
    assert "better than MTP, width 2 (+" in text and "not told from Baseline (+0.5 %" in text


def test_a_single_width_that_is_better_over_the_range(tmp_path):
    _, ranged, _, claim = compared(tmp_path, truth.points(with_rates(c8=300, c32=700)))
    # against the baseline 1.21, 0.75, 0.875
    assert of(ranged)["ratio"].iloc[0] == pytest.approx((1.21 * 0.75 * 0.875) ** (1 / 3))
    assert claim.whole is False and "worse than Baseline (-7.4 %" in str(claim)


def test_above_the_best_is_said(tmp_path):
    _, _, _, claim = compared(tmp_path, truth.points(with_rates(c1=140)))
    assert claim.holds and "above it at c = 1 (+16.7 %)" in str(claim)


def test_a_missing_point_of_the_controller_is_no_success(tmp_path):
    against, ranged, _, claim = compared(tmp_path, truth.points(failed=[(ARM, 8)]))
    own = of(against)
    assert own["verdict"].tolist() == ["none", NOT_MEASURED, "none"]
    assert own["status"].tolist() == ["ok", "failed", "ok"]
    assert own["reason"].iloc[1] == "the server died"
    assert of(ranged)["loads"].tolist() == [2] * 3
    assert of(ranged)["verdict"].tolist() == [NOT_MEASURED] * 3
    assert (claim.every, claim.whole, claim.holds) == (None, None, None)
    assert "the claim is not shown. Not known at c = 8, where its point or" in str(claim)
    assert "Not all loads have both it and Baseline (2)" in str(claim)


def test_a_missing_fixed_width_may_have_been_the_best(tmp_path):
    against, _, _, claim = compared(tmp_path, truth.points(failed=[("mtp_w2", 1)]))
    own = of(against)  # at one lane the best of the others is width 4; the controller is above it
    assert own["best"].tolist() == ["mtp_w4", "baseline", "baseline"]
    assert own["verdict"].tolist() == [NOT_MEASURED, "none", "none"]
    assert (claim.every, claim.holds) == (None, None)
    # lower than some fixed width is lower than the best, whatever is missing
    changed = with_rates(c1=90)
    against, *_, claim = compared(tmp_path, truth.points(changed, failed=[("mtp_w2", 1)]))
    assert of(against)["verdict"].iloc[0] == "lower" and claim.holds is False


def test_a_load_that_nobody_has_measured_is_missing(tmp_path):
    against, _, _, claim = compared(tmp_path, truth.points(), loads=(*truth.LOADS, 64))
    assert of(against)["verdict"].iloc[3] == NOT_MEASURED and claim.holds is None
    assert "c = 64" in str(claim)


def test_one_block_alone_judges_nothing(tmp_path):
    against, ranged, noise, claim = compared(tmp_path, truth.points(blocks=(1,), delta=0))
    assert str(noise).startswith("n = 1 block and no A/A pair: no band") and noise.band is None
    assert set(of(against)["verdict"]) == set(of(ranged)["verdict"]) == {"unknown"}
    assert of(against)["low"].isna().all()
    assert claim.holds is None and "Nothing tells a difference from noise" in str(claim)
    assert "with a noise that is not known, against Baseline (+5.8 %)" in str(claim)


@pytest.mark.parametrize(("c8", "verdict"), [(396, "none"), (380, "lower")])
def test_one_block_and_an_a_a_pair_give_a_band(tmp_path, c8, verdict):
    pair = {"baseline_aa": {8: 400 * math.exp(0.003), 32: 800 * math.exp(-0.003)}}
    points = truth.points(with_rates(c8=c8) | pair, blocks=(1,), delta=0)
    against, _, noise, claim = compared(tmp_path, points)
    # rms of the pair's log ratios 0.003, t of one degree of freedom 12.7062: logs up to 0.0381
    assert noise.band == pytest.approx(math.exp(0.003 * 12.7062), rel=1e-5)
    assert of(against)["verdict"].iloc[1] == verdict  # log 0.99 = -0.010, log 0.95 = -0.051
    assert claim.every == (verdict == "none")
    assert "baseline_aa" not in set(against["arm"])
    if claim.every:
        assert "one block cannot tell ratios from -3.7 % on from noise" in str(claim)


def test_an_interval_needs_two_blocks_at_every_load(tmp_path):
    points = truth.points()
    one = (points["arm"] == ARM) & (points["c"] == 8) & (points["block"] == 2)
    against, ranged, *_ = compared(tmp_path, points[~one])
    assert of(against)["n"].tolist() == [2, 1, 2]
    assert of(against)["low"].isna().tolist() == [False, True, False]
    assert of(ranged)["low"].isna().all() and set(of(ranged)["verdict"]) == {"unknown"}


def test_launches_do_not_average_out_over_loads_and_points_do():
    """With variances a of launches and b of points, n = 2: a + b at a load, a + b / 3 over three.

    So many degrees of freedom that t is the normal distribution's.
    """
    a, b, many = 4e-4, 9e-4, 10**6
    # expected sums of squares of a balanced plan of three loads per launch
    parts = Components(many * (b + 3 * a), 2 * many * b, many, 2 * many, 3 * many)
    noise = policies.Noise(parts, Floor(math.nan, 0, 0, 0, 0), 2)
    pairs = pd.DataFrame([(c, k, 0.0) for c in (1, 8, 32) for k in (1, 2)])
    pairs.columns = ["c", "block", "log"]
    for rows, variance in ((pairs[pairs["c"] == 8], a + b), (pairs, a + b / 3)):
        found = noise.mean(rows)
        assert found["high"] == pytest.approx(math.exp(1.959964 * math.sqrt(variance)), rel=1e-5)
        assert found["p"] == pytest.approx(1.0)


def test_means_over_the_range_by_hand(tmp_path):
    against, *_ = compared(tmp_path, truth.points())
    means = policies.range_means(against, truth.points()).set_index("arm")
    assert means.loc["mtp_w2", "tok_s"] == pytest.approx((120 * 380 * 640) ** (1 / 3))
    assert means.loc["mtp_w2", "to_best"] == pytest.approx((1 * 0.95 * 0.8) ** (1 / 3))
    assert means.loc[ARM, "to_best"] == pytest.approx((121 / 120 * 0.99 * 0.9875) ** (1 / 3))
    assert (means["loads"] == 3).all()


def test_widths_and_their_costs_by_hand(tmp_path):
    folder = truth.write_run(tmp_path / "run", blocks=(1,), delta=0)
    found = policies.find(Run(folder))
    own = of(found.shares).set_index("width")
    assert own["iterations"].to_dict() == {1: 3, 2: 2}  # no prefill, nothing behind the window
    assert own["share"].to_dict() == pytest.approx({1: 0.6, 2: 0.4})
    assert own.loc[1, "time_share"] == pytest.approx(0.075 / 0.145)
    assert own.loc[2, "per_request"] == pytest.approx(18 / 12)
    assert own.loc[2, "iteration_s"] == pytest.approx(0.035)

    (row,) = found.why.to_dict("records")
    assert (row["c"], row["best"], row["width"], row["at_width"]) == (8, "baseline", 1, 0.6)
    # at batch 8 the baseline makes 400 tok/s, the controller 320 at width 1 and 300 at width 2;
    # batch 4 was never run at width 1 and does not count
    assert row["same_width"] == pytest.approx(0.8)
    assert row["other_widths"] == pytest.approx((24 + 12) / (0.115 * 320))


def test_the_document_is_written_and_says_the_same(tmp_path):
    folder = truth.write_run(tmp_path / "run")
    found = policies.write_policies(Run(folder))
    written = json.loads((folder / "policies.json").read_text())
    assert written["claims"][0]["text"] == str(found.claims[0]) and written["claims"][0]["holds"]
    assert found.loads == truth.LOADS  # the open loop of the profile is not on this axis
    # the controller against the best at 3 loads and against 3 widths
    assert found.multiplicity.startswith("6 comparisons were made")
    assert written["noise"].startswith("n = 2 blocks; 95% t intervals")


def test_a_run_without_a_usable_point_is_one_sentence(tmp_path):
    folder = truth.write_run(tmp_path / "a", failed=[("baseline", c) for c in truth.LOADS])
    with pytest.raises(KvtopError, match="no point of 'baseline' is ok"):
        policies.find(Run(folder))
    others = [(a, c) for a in truth.DRAFTS if a != "baseline" for c in truth.LOADS]
    folder = truth.write_run(tmp_path / "b", failed=others)
    with pytest.raises(KvtopError, match="no arm but the baseline has a point"):
        policies.find(Run(folder))


def test_without_recorded_iterations_there_are_no_widths(tmp_path):
    folder = truth.write_run(tmp_path / "run")
    for file in folder.rglob("iterations.parquet"):
        file.unlink()
    assert iterations.recorded(Run(folder)).empty
    found = policies.find(Run(folder))
    assert found.shares.empty and found.why.empty and found.claims[0].holds

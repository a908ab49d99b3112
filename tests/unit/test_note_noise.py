"""What the note says of noise and of points that were measured with other code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvtop_lib.note import caveats, claims, hosts
from kvtop_lib.note.evidence import Evidence

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    return truth.write_run(tmp_path / "synthetic")


def test_without_an_a_a_pair_the_noise_is_said_to_be_unknown(folder):
    ev = Evidence.load(folder)
    assert ev.drafting == ["mtp_w2", "mtp_w4", "ngram"] and ev.noise.loads == 0
    assert "no A/A pair was run" in claims.near_note(ev)
    assert "not run against itself" in caveats._noise_floor(ev)


@pytest.mark.parametrize(
    ("aa", "then"),
    [(False, "calls no load better or worse"), (True, "asks for more than the A/A pair showed")],
)
def test_one_pair_of_windows_per_comparison_is_said_under_the_title(folder, aa, then):
    file = folder / "results.jsonl"
    kept = [x for x in file.read_text().splitlines() if json.loads(x)["block"] == 1]
    file.write_text("\n".join(kept) + "\n")
    for name in ("manifest.json", "results.jsonl") if aa else ():
        text = (folder / name).read_text().replace('"ngram"', '"baseline_aa"')
        (folder / name).write_text(text.replace('"method": "baseline_aa"', '"method": "none"'))
    assert then in claims.standfirst(Evidence.load(folder))


def test_repeats_need_no_such_sentence(folder):
    assert "one pair of windows" not in claims.standfirst(Evidence.load(folder))


def test_an_a_a_pair_is_no_drafting_arm_and_gives_the_floor(folder):
    for name in ("manifest.json", "results.jsonl"):
        file = folder / name
        text = file.read_text().replace('"ngram"', '"baseline_aa"')
        file.write_text(text.replace('"method": "baseline_aa"', '"method": "none"'))
    ev = Evidence.load(folder)
    assert ev.drafting == ["mtp_w2", "mtp_w4"] and ev.primary == "mtp_w2"
    # the known ratios of that arm: 1.1 1.05 1 0.95 0.9 0.85; at 32 its second block failed and
    # the first is 1 % above
    assert ev.noise.loads == 6 and ev.noise.ratio == pytest.approx(1 / (0.85 * 1.01))
    assert "differed by up to 16.5" in claims.near_note(ev)
    assert "run under another name" in caveats._noise_floor(ev)


def test_points_of_another_commit_than_the_manifests_are_counted(folder):
    assert hosts.commits(Evidence.load(folder)) is None  # older records do not tell
    manifest = json.loads((folder / "manifest.json").read_text())
    cited = manifest["git"]["commit"]
    file = folder / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for i, line in enumerate(lines):
        line["commit"] = "other" if i in (1, 4) else cited
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = hosts.commits(Evidence.load(folder))
    assert "L2,L5:commit" in said and "2</span> points" in said

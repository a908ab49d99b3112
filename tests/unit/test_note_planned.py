"""What was planned against what there is: gaps at either end of the load, runs that go on."""

import json
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib.note import Article, captions, claims, planned
from kvtop_lib.note.caveats import caveats
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402


def plain(html: str) -> str:
    return " ".join(Markup(html).striptags().replace("\u00a0", " ").split())


def keep(folder: Path, wanted) -> Path:
    """Only the lines of results.jsonl that are wanted."""
    file = folder / "results.jsonl"
    lines = [x for x in file.read_text().splitlines() if wanted(json.loads(x))]
    file.write_text("".join(x + "\n" for x in lines))
    return folder


def invalid(folder: Path, loads: tuple[int, ...]) -> Path:
    """Every point of MTP of width 2 at these loads failed its checks."""
    file = folder / "results.jsonl"
    lines = [json.loads(x) for x in file.read_text().splitlines()]
    for i, line in enumerate(lines):
        if line["arm"] == "mtp_w2" and line["c"] in loads:
            kept = ("schema", "run", "arm", "block", "workload", "load", "c", "attempt", "seed")
            lines[i] = {k: line[k] for k in kept} | {"status": "invalid", "reason": "made so"}
    file.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """MTP of width 2 gains up to 16 lanes and loses at 32."""
    ratios = dict(zip(truth.LOADS, (1.3, 1.3, 1.3, 1.3, 1.3, 0.9), strict=True))
    monkeypatch.setitem(truth.RATIO, "mtp_w2", ratios)
    return truth.write_run(tmp_path / "synthetic")


def said(ev: Evidence) -> dict[str, str]:
    parts = {"headline": claims.headline(ev), "standfirst": claims.standfirst(ev)}
    for name in ("throughput", "mechanism", "plane"):
        parts[name] = getattr(captions, name)(ev)[0]
    return {k: plain(v) for k, v in parts.items()}


def test_with_every_pair_the_words_are_few_and_load(run):
    found = said(Evidence.load(run))
    assert found["headline"] == (
        "Drafting pays while few requests are in flight, and costs output under load"
    )
    assert "no valid pair" not in " ".join(found.values())
    assert found["throughput"].endswith("the gain at the lowest load does not reach the highest "
                                        "load.")  # fmt: skip


@pytest.mark.parametrize(
    ("how", "who"),
    [  # where other arms have no gain left, the headline speaks of its own alone
        ("invalid", "Drafting"),
        ("not measured", "Drafting"),
        ("without a point", "MTP, width 2"),
    ],
)
def test_where_low_loads_have_no_pair_no_claim_speaks_of_few_requests(run, how, who):
    low = (1, 2, 4, 8)
    if how == "invalid":
        invalid(run, low)
    else:
        arms = ("mtp_w2",) if how == "not measured" else truth.ARMS
        keep(run, lambda x: x["c"] not in low or x["arm"] not in arms)
    found = said(Evidence.load(run))
    lowest = "the lowest load with a valid pair (c = 16)"
    assert found["headline"] == f"{who} pays at {lowest}, and costs output under load"
    assert "c = 1, c = 2, c = 4 and c = 8 have no valid pair" in found["standfirst"]
    for name in ("throughput", "mechanism", "plane"):
        assert lowest in found[name] and "few" not in found[name], name
    assert note_numbers.untraced_digits(Article(run).head()) == []


def test_where_high_loads_have_no_pair_no_claim_speaks_of_load(run, monkeypatch):
    ratios = dict(zip(truth.LOADS, (1.3, 1.3, 0.9, 0.9, 0.9, 0.9), strict=True))
    monkeypatch.setitem(truth.RATIO, "mtp_w2", ratios)
    found = said(Evidence.load(invalid(truth.write_run(run), (8, 16, 32))))
    highest = "the highest load with a valid pair (c = 4)"
    assert found["headline"].endswith(f"in flight, and costs output at {highest}")
    assert "c = 8, c = 16 and c = 32 have no valid pair" in found["standfirst"]
    assert highest in found["throughput"] and highest in found["plane"]


def test_every_load_is_said_only_of_every_load(run, monkeypatch):
    monkeypatch.setitem(truth.RATIO, "mtp_w2", dict.fromkeys(truth.LOADS, 1.3))
    found = said(Evidence.load(truth.write_run(run)))
    assert found["headline"] == "MTP, width 2 paid at every load we measured"
    found = said(Evidence.load(invalid(run, (4,))))
    assert found["headline"] == "MTP, width 2 paid at every load with a valid pair"
    assert "c = 4 has no valid pair" in found["standfirst"]
    assert "No load with a valid pair up to c = 32 turns" in found["standfirst"]


def test_loads_that_an_arm_was_never_to_be_measured_at_are_no_gap(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profile"]["only"] = {"mtp_w2": [16, 32]}
    (run / "manifest.json").write_text(json.dumps(manifest))
    keep(run, lambda x: x["arm"] != "mtp_w2" or x["c"] in (16, 32))
    ev = Evidence.load(run)
    assert planned.loads(ev) == [16, 32] and planned.gaps(ev) is None
    assert plain(claims.headline(ev)) == (
        "Drafting pays at the lowest load (c = 16), and costs output under load"
    )


def test_a_profile_whose_loads_are_none_is_refused(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profile"]["loads"] = ["many"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(KvtopError, match="profile.loads holds what is no load"):
        Article(run).head()


# -- runs that go on ----------------------------------------------------------------------
def plan(folder: Path) -> None:
    """plan.json of the synthetic run: 8 lifetimes of 6 points."""
    steps = [
        {"position": i, "arm": arm, "block": block, "workload": "agent",
         "loads": [f"c{c}" for c in truth.LOADS]}
        for i, (arm, block) in enumerate(truth.order(), 1)
    ]  # fmt: skip
    (folder / "plan.json").write_text(json.dumps({"schema": 1, "lifetimes": steps}))


def test_a_finished_run_is_not_called_unfinished(run):
    assert planned.unfinished(Evidence.load(run)) is None, "without a plan nothing is known"
    plan(run)  # failed and invalid points count as measured
    assert planned.unfinished(Evidence.load(run)) is None


def test_an_unfinished_run_says_how_much_is_missing(run, monkeypatch, capsys):
    from kvtop_lib import note, step

    plan(run)
    keep(run, lambda x: x["block"] == 1 or (x["arm"] == "ngram" and x["c"] == 1))
    sentence = "The run is not finished: 23 of 48 planned points are not measured yet."
    page = Article(run)
    assert sentence in plain(page.head())
    assert any(sentence in plain(c) for c in caveats(page.ev))
    assert "24 of 25 points are ok, 23 are not measured yet" in plain(page.tiles())
    assert "Every point has n = 2 blocks" not in plain(page.caveats())
    html = page.head() + page.tiles() + page.caveats()
    assert note_numbers.held(run, html).get("plan.json:count(unmeasured)") == 3
    monkeypatch.setattr(note, "render_note", lambda run, out: out)
    step.render(type("P", (), {"id": "other"}), run)
    again = "points that are not ok: 1 of 25; `make retry` measures them again"
    assert capsys.readouterr().out.endswith(f"\n  {sentence}\n  {again}\n")

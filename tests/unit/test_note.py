"""The note says what the records say: claims follow the data, numbers can be recomputed."""

import json
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib.decision import write_decision
from kvtop_lib.note import Article, claims, plates
from kvtop_lib.note.caveats import caveats
from kvtop_lib.note.evidence import Change, Evidence, verdict
from kvtop_lib.note.method import ranges
from kvtop_lib.note.prose import Value
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic")
    write_decision(Run(run))  # the page cites it
    return run


@pytest.fixture(scope="module")
def page(folder):
    note = Article(folder)
    parts = [note.head(), note.tiles(), *(note.figure(name) for name in plates.ALL),
             note.lossless(), note.method(), note.caveats(), note.reproduce()]  # fmt: skip
    return "\n".join(parts)


def variant(folder: Path, monkeypatch, ratios: dict[int, float]) -> Evidence:
    """A run in which MTP of width 2 has other ratios."""
    monkeypatch.setitem(truth.RATIO, "mtp_w2", ratios)
    return Evidence.load(truth.write_run(folder))


def test_every_number_of_the_page_is_traced_and_can_be_recomputed(folder, page):
    assert note_numbers.held(folder, page).total() > 60


def test_a_changed_record_changes_the_page(tmp_path, page):
    """The test of the tests above: numbers come from the file."""
    folder = truth.write_run(tmp_path / "synthetic")
    lines = [json.loads(x) for x in (folder / "results.jsonl").read_text().splitlines()]
    lines[7]["output_tok_s"] *= 2  # mtp_w2, block 1, c = 1
    (folder / "results.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert "+84 %" in str(Article(folder).tiles()).replace("\u00a0", " ")
    assert "+30 %" in page.replace("\u00a0", " ")


def test_records_never_become_markup(page):
    assert truth.HOSTILE in truth.FAILED["ngram", 2, 32]
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert" in page


def test_headline_tiles(page):
    tiles = page.split('<div class="tiles">')[1].split("<figure")[0].replace("\u00a0", " ")
    for text in ("+30 %", "−10 %", "+20 %", "46", "48"):
        assert f">{text}<" in tiles


@pytest.mark.parametrize(
    ("ratios", "headline", "crossing"),
    [
        ((1.3, 1.25, 1.2, 1.1, 1.0, 0.9), "pays while few", "between c = 8 and c = 32"),
        ((1.3, 1.25, 1.2, 1.1, 1.1, 1.1), "paid at every load", "No load we measured up to c = 32"),
        ((0.9, 0.9, 0.9, 0.9, 0.9, 0.9), "paid at no load", "no load we measured shows a gain"),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), "no clear difference", "no load we measured shows a gain"),
        ((1.3, 1.2, 1.1, 1.0, 1.0, 1.0), "the gain is gone", "No load we measured up to c = 32"),
        ((0.8, 0.9, 1.0, 1.1, 1.2, 1.3), "costs output while few", "not a single turn"),
        ((1.2, 0.8, 1.2, 0.8, 1.2, 0.8), "no simple order", "not a single turn"),
    ],
)
def test_claims_follow_the_data(tmp_path, monkeypatch, ratios, headline, crossing):
    ev = variant(tmp_path / "r", monkeypatch, dict(zip(truth.LOADS, ratios, strict=True)))
    assert headline in claims.headline(ev)
    text = claims.crossing(ev.changes("mtp_w2"), ev).striptags().replace("\u00a0", " ")
    assert crossing in text


def test_the_headline_speaks_of_one_arm_where_the_others_fare_otherwise(tmp_path, monkeypatch):
    together = Evidence.load(truth.write_run(tmp_path / "together"))
    assert claims.headline(together).startswith("Drafting pays while few")
    assert claims.better(together) is None, "no arm gains more than MTP, width 2"
    ev = variant(tmp_path / "r", monkeypatch, dict.fromkeys(truth.LOADS, 0.9))
    assert claims.headline(ev).striptags() == "MTP, width 2 paid at no load we measured"
    text = claims.standfirst(ev).striptags().replace("\u00a0", " ")
    assert "With MTP, width 2 no load we measured shows a gain" in text
    best = max(truth.RATIO[a][c] for a in ("mtp_w4", "ngram") for c in truth.LOADS)
    assert f"Of the other arms MTP, width 4 gains most (+{best - 1:.0%} at c = 1)." in text.replace(
        " %", "%"
    )


def test_shape_of_a_course():
    def course(*verdicts):
        value = Value("x", "y", 1.0)
        return claims.shape([Change("a", c, value, v, 1) for c, v in enumerate(verdicts)])

    assert course() == "none"
    assert course("gain", "gain", "same", "loss") == "gain_then_loss"
    assert course("same", "loss") == "loss_grows"
    assert course("gain", "loss", "gain") == "mixed"


def test_verdict_without_and_with_an_interval():
    assert [verdict(r) for r in (1.019, 1.021, 0.981, 0.97)] == ["same", "gain", "same", "loss"]
    assert verdict(1.10, 0.95, 1.25) == "same" and verdict(1.01, 1.005, 1.015) == "gain"


def test_the_headline_speaks_of_the_first_mtp_arm_whatever_won(folder):
    assert Evidence.load(folder).primary == "mtp_w2"


def test_caveats_follow_the_state_of_the_evidence(folder, tmp_path):
    def texts(run):
        return [c.striptags().replace("\u00a0", " ") for c in caveats(Evidence.load(run))]

    said = texts(folder)
    assert any("n = 2 blocks" in t for t in said)
    assert any("2 of 48 points are not ok" in t for t in said)
    assert any("7 timeout" in t for t in said)
    assert any("ran on a CPU" in t for t in said)
    # one block, all ok, a GPU, a dirty checkout, a check that disagreed
    run = truth.write_run(tmp_path / "r")
    lines = [json.loads(x) for x in (run / "results.jsonl").read_text().splitlines()]
    lines = [x for x in lines if x["block"] == 1 and x["status"] == "ok"]
    lines[0]["audits"]["little"] = {"ok": False, "reason": "x"}
    for line in lines:
        line["counts"] = {"ok": 9}
    (run / "results.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profile"]["blocks"], manifest["model"]["device"] = 1, "cuda"
    manifest["git"]["dirty"] = True
    (run / "manifest.json").write_text(json.dumps(manifest))
    said = texts(run)
    assert any("one window of one server lifetime (n = 1)" in t for t in said)
    assert any("uncommitted changes" in t for t in said)
    assert any("little (L1)" in t for t in said)
    assert not any("CPU" in t or "not ok" in t or "timeout" in t for t in said)


def test_lossless_result_is_told_as_recorded(folder, tmp_path):
    text = Article(folder).lossless()
    assert "Drafting changed outputs in the probe" in text and "Not lossless." in text
    run = truth.write_run(tmp_path / "r")
    for arm in truth.ARMS[1:]:
        file = run / arm / "deploy" / "deployment.json"
        record = json.loads(file.read_text())
        record["lossless"]["matched"] = 20
        file.write_text(json.dumps(record))
    assert "changed no output in the probe" in Article(run).lossless()
    none = {"role": "compared", "prompts": 0, "tokens": 0, "matched": 0, "mismatches": []}
    for arm in truth.ARMS[1:]:  # lossless_prompts: 0
        file = run / arm / "deploy" / "deployment.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"lossless": none}))
    text = Article(run).lossless()
    assert "No arm was compared" in text and "Not probed" in text and "equal" not in text
    for arm in truth.ARMS[1:]:
        (run / arm / "deploy" / "deployment.json").unlink()
    text = Article(run).lossless()
    assert "No arm was compared" in text and "Not probed" in text


def test_a_run_with_one_arm_still_renders(tmp_path):
    run = truth.write_run(tmp_path / "r")
    lines = (run / "results.jsonl").read_text().splitlines()
    keep = [x for x in lines if '"arm": "baseline"' in x]
    (run / "results.jsonl").write_text("\n".join(keep) + "\n")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["arms"] = {"baseline": manifest["arms"]["baseline"]}
    (run / "manifest.json").write_text(json.dumps(manifest))
    note = Article(run)
    assert "nothing to compare yet" in note.head()
    for name in plates.ALL:
        assert note.figure(name)
    for name, shows in (("ratio", "ratios to the baseline"), ("plane", "tokens per iteration")):
        said = Markup(note.figure(name)).striptags()
        assert said.startswith(f"The records hold no valid points for {shows}"), said
    assert note.tiles() and note.caveats() and note.lossless()


def test_evidence_lines_name_the_lines_of_the_figure(page):
    core = page.split('id="fig-core"')[1].split("</figure>")[0]
    assert "L1, L7–8, L13, L38, L43–44, L49" in core
    assert ranges([3, 1, 2, 9, 7, 8, 5]) == "L1–3, L5, L7–9"


def test_a_folder_without_points_is_refused(tmp_path):
    with pytest.raises(KvtopError, match="manifest.json is missing|no point"):
        Article(tmp_path)

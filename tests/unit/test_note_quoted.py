"""Notes of published evidence: what was printed, what follows from it, and nothing else."""

import csv
import shutil
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest

from kvtop_lib.note.quoted import QuotedArticle, QuotedEvidence
from kvtop_lib.note.quoted.article import MAKERS
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402

FOLDER = Path(__file__).parents[2] / "params" / "published"
NAMES = ("glm53", "qwen35")
HOSTILE = '<script>alert("x")</script> & <img src=x onerror=alert(1)>'


def whole(note: QuotedArticle) -> str:
    """All parts of a page."""
    own = ("active", "per_request")
    sections = [note.section("How many", "Some prose.", figure=name) for name in own]
    figures = [note.figure(name) for name in MAKERS if note.has(name)]
    return "\n".join([
        note.head(), note.tiles(), *figures, *sections, note.findings(), note.waiting(),
        note.method(), note.caveats(), note.references(), note.reproduce(),
    ])  # fmt: skip


def plain(html: str) -> str:
    """Visible text with ordinary spaces."""
    from markupsafe import Markup

    return " ".join(Markup(html).striptags().replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def notes() -> dict[str, QuotedArticle]:
    return {name: QuotedArticle(f"published:{name}") for name in NAMES}


@pytest.fixture(scope="module")
def pages(notes) -> dict[str, str]:
    return {name: whole(note) for name, note in notes.items()}


@pytest.fixture
def copy(tmp_path):
    """The files of `params/published` where they may be changed."""
    for file in FOLDER.glob("*.*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_traced_and_recomputed_from_the_published_files(pages, name):
    # an empty text is that of a command
    held = note_numbers.held(FOLDER, pages[name], is_text=lambda value: bool(value.text))
    assert held.total() > 40


def test_percentages_agree_with_the_printed_ones_half_to_even(notes):
    """By decimal arithmetic of the printed digits, not by the library's."""
    with (FOLDER / "qwen35_122b_concurrency_sweep.csv").open() as f:
        rows = list(csv.DictReader(f))
    ev = notes["qwen35"].ev
    for row in rows:
        for column, what in (("output_tok_s", "output"), ("per_request_tok_s", "per_request")):
            over, under = Decimal(row[f"mtp_{column}"]), Decimal(row[f"baseline_{column}"])
            exact = (over / under - 1) * 100
            printed = Decimal(row[f"quoted_{what}_change_pct"])
            assert exact.quantize(Decimal(1), ROUND_HALF_EVEN) == printed, row
            found = ev.change("mtp", int(row["concurrency"]), column).percent.text
            assert found == f"{int(printed):+d}\u00a0%".replace("-", "−")
    assert ev.change("mtp", 1).percent.text == "+12\u00a0%"  # 121.5 / 108 is exactly 1.125
    with (FOLDER / "glm53_concurrency_sweep.csv").open() as f:
        for row in csv.DictReader(f):
            for arm in ("mtp", "mtp_ngram"):
                printed = int(row[f"{arm}_over_baseline_pct"])
                found = notes["glm53"].ev.change(arm, int(row["concurrency"])).percent.text
                assert found == f"{printed:+d}\u00a0%".replace("-", "−")


def test_the_isolation_pair_is_the_core_result(notes):
    core = notes["glm53"].plate("core")
    assert core.data["tok_s"].tolist() == [52.7, 63.7, 368.3, 328.4]
    assert core.data["drafting"].tolist() == ["off", "on", "off", "on"]
    text = plain(notes["glm53"].figure("core"))
    # 63.7 / 52.7 = 1.2087, 328.4 / 368.3 = 0.8917, 368.3 / 328.4 = 1.1215
    for said in ("+20.9 % at c = 1", "−10.8 % at c = 8", "switching drafting off gives +12.1 %",
                 "one and the same deployment", "dw1iso2", "d84527b3",
                 "40 s burn-in, 60 s warm-up and 300 s window",
                 "no policy that switches"):  # fmt: skip
        assert said in text, said
    assert "39ef63a1" not in text, "the pair ran on another build than the sweep"
    assert notes["qwen35"].plate("core").data["tok_s"].tolist() == [108, 121.5, 2800, 1635]


def test_headlines_tiles_and_what_a_reader_waits_for(notes, pages):
    glm, qwen = plain(pages["glm53"]), plain(pages["qwen35"])
    assert "under load the gain is gone" in glm and "costs output under load" in qwen
    tiles = {name: plain(note.tiles()) for name, note in notes.items()}
    for said in ("+33 %", "−2 %", "MTP + n-gram +58 %", "MTP + n-gram −1 %", "+42 %", "n = 1",
                 "each 300 s long"):  # fmt: skip
        assert said in tiles["glm53"], said
    for said in ("+12 %", "−42 %", "+57 %", "41 tok/s becomes 64.5 tok/s", "n = ?"):
        assert said in tiles["qwen35"], said
    assert not notes["glm53"].has("ttft"), "no TTFT curve was published"
    said = plain(notes["glm53"].waiting())
    assert "At c = 32 the first token takes longer with drafting (+42 %)" in said
    assert "there is no curve" in said
    assert "Nothing on time to first token" in notes["qwen35"].waiting()


def test_where_only_ratios_were_published_the_figure_says_so(notes):
    plate = notes["glm53"].plate("throughput")
    derived = plate.data.set_index(["arm", "c"])
    assert derived["derived"].to_dict() == {
        (arm, c): arm != "baseline" for arm in ("baseline", "mtp", "mtp_ngram")
        for c in (1, 2, 4, 8, 16, 32)
    }  # fmt: skip
    assert derived.loc[("mtp", 32), "mean"] == pytest.approx(971 * 0.98)
    assert "derived" in plate.table and plate.kind == "published"
    text = plain(notes["glm53"].figure("throughput"))
    assert "For MTP and MTP + n-gram only ratios to Baseline were published" in text
    text = plain(notes["glm53"].figure("ratio"))
    assert "+1.9 % (MTP) and +1.5 % (MTP + n-gram)" in text and "whole percent" in text
    assert "derived" not in notes["qwen35"].plate("throughput").table


def test_small_printed_changes_are_level(notes):
    ev = notes["glm53"].ev
    assert [x.verdict for x in ev.changes("mtp")] == ["gain"] * 3 + ["same"] * 3
    assert ev.change("mtp_ngram", 4).verdict == "gain" and ev.change("mtp", 4).verdict == "gain"
    assert [x.verdict for x in ev.isolation.changes("width_on")] == ["gain", "loss"]


def test_method_and_evidence_lines_are_the_sources_own(pages):
    glm, qwen = plain(pages["glm53"]), plain(pages["qwen35"])
    for said in ("decode on a second host (PP4)", "decode on a second host (TP2 × PP4)",
                 "stated in more than one way", "SGLang fork @ 39ef63a1", "mtpng-20261010T104041",
                 "results.jsonl L3–8, L11–16, L19–24 (not public)", "draft widths 1, 2 and 4",
                 "params/published/glm53_concurrency_sweep.csv L2–7",
                 "params/published/glm53_width_isolation.csv L2–3"):  # fmt: skip
        assert said in glm, said
    for said in ("4 × RTX PRO 6000 Blackwell", "1.91 GB per rank", "1,000 tokens in",
                 "The MTP Benchmark", "max-running-requests with MTP: 48"):  # fmt: skip
        assert said in qwen, said


def test_caveats_follow_what_the_source_lacks(notes):
    glm, qwen = (plain(notes[name].caveats()) for name in NAMES)
    for said in ("(n = 1)", "KV settings and the split of layers", "another build (d84527b3)",
                 "at c = 1 and c = 8", "time to first token (+42 % at c = 32 and no other load)",
                 "acceptance under load", "No ablation has tested it",
                 "more than one way"):  # fmt: skip
        assert said in glm, said
    assert "does not define it" not in glm
    for said in ("does not say how often", "No pair of points differs in drafting alone",
                 "does not define it", "The table itself can be held against it"):  # fmt: skip
        assert said in qwen, said
    assert "more than one way" not in qwen and "whole percent" not in qwen


def test_active_requests_are_output_over_speed(notes):
    plate = notes["qwen35"].plate("active")
    found = plate.data.set_index(["arm", "c"])["mean"]
    by_hand = {
        "mtp": [121.5 / 123.1, 400.5 / 118.6, 1209 / 84.4, 1502 / 62.3, 1571 / 65.7, 1635 / 64.5],
        "baseline": [108 / 110, 286 / 82, 873 / 61, 1359 / 59, 2327 / 44, 2800 / 41],
    }
    for arm, values in by_hand.items():
        assert found[arm].tolist() == pytest.approx(values)
    text = plain(notes["qwen35"].figure("active"))
    assert "68.3 with Baseline (at c = 128)" in text and "25.3 with MTP (at c = 128)" in text
    said = plain(notes["qwen35"].findings())
    assert "not supported" in said and "12 quoted changes agree" in said
    assert notes["glm53"].plate("active") is None and notes["glm53"].findings() == ""
    assert notes["glm53"].section("Title", "Text.", figure="active") == ""


def test_both_views_are_in_one_figure(notes):
    plate = notes["qwen35"].plate("views")
    wide = plate.data.pivot(index="c", columns="title", values="mean")
    assert wide.loc[128].to_dict() == pytest.approx(
        {"Output of the server": 1635 / 2800, "Speed of one request": 64.5 / 41}
    )
    text = plain(notes["qwen35"].figure("views"))
    assert "the output of the server is higher at low load and lower at high load" in text
    assert "the speed of one request is higher at every load" in text


def test_a_changed_cell_changes_the_page(copy):
    """The test of the tests above: numbers come from the files."""
    change(copy / "glm53_concurrency_sweep.csv", "1,63,33,58", "1,63,44,58")
    change(copy / "glm53.yaml", "change_pct: 42", "change_pct: 24")
    text = plain(whole(QuotedArticle(copy / "glm53.yaml")))
    assert "+44 % at c = 1" in text and "+33 %" not in text
    assert "+24 %" in text and "+42 %" not in text


def test_an_arm_that_was_not_measured_at_a_load_has_no_point_there(copy):
    change(copy / "glm53_concurrency_sweep.csv", "16,655,-2,-1", "16,655,,-1")
    ev = QuotedEvidence.load(copy / "glm53.yaml")
    assert [x.c for x in ev.changes("mtp")] == [1, 2, 4, 8, 32]
    assert [x.c for x in ev.changes("mtp_ngram")] == [1, 2, 4, 8, 16, 32]


def test_a_source_never_becomes_markup(copy):
    yaml = copy / "glm53.yaml"
    change(yaml, "title: MTP + n-gram", f"title: '{HOSTILE}'")
    change(yaml, "text: >-\n    the pool", f"text: >-\n    {HOSTILE} the pool")
    html = whole(QuotedArticle(yaml))
    assert "<script>alert" not in html and "<img src=x" not in html
    assert html.count("&lt;script&gt;") >= 3


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("glm53.yaml", "sheets:", "sheet:", "unknown key 'sheet', did you mean 'sheets'"),
        ("glm53.yaml", "change_pct: mtp_over_baseline_pct", "change_pct: mtp_pct",
         "has no column 'mtp_pct'"),
        ("glm53.yaml", "glm53_concurrency_sweep.csv", "none.csv", "none.csv cannot be read"),
        ("glm53.yaml", "{arm: mtp, c: 32", "{arm: mpt, c: 32", "facts: no arm 'mpt'"),
        ("glm53.yaml", "reference: width_off", "reference: off_", "reference 'off_' is none"),
        ("glm53.yaml", "title: GLM-5.3 on", "title: [", "is not valid YAML"),
        ("glm53_concurrency_sweep.csv", "8,408,2,1", "8,408,two,1", "line 5: 'two' is not a plain"),
        ("glm53_concurrency_sweep.csv", "8,408,2,1", "4,408,2,1", "line 5: concurrency must be"),
        ("glm53_concurrency_sweep.csv", "8,408,2,1", "8,408,2", "line 5: 3 cells under 4 columns"),
    ],
)  # fmt: skip
def test_faults_are_one_sentence(copy, file, old, new, said):
    change(copy / file, old, new)
    with pytest.raises(KvtopError) as e:
        ev = QuotedEvidence.load(copy / "glm53.yaml")
        assert ev.isolation
    assert said in str(e.value) and "\n" not in str(e.value)


def test_unknown_sources_are_named():
    with pytest.raises(KvtopError, match="no published 'glm5'.*did you mean 'glm53'"):
        QuotedEvidence.load("published:glm5")
    with pytest.raises(KvtopError, match="there is no file none.yaml"):
        QuotedEvidence.load("none.yaml")

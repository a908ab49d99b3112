"""The analyses and the note on the synthetic run, executed as they ship."""

import json
import re
import sys
from pathlib import Path

import pytest
from checkout import execute

from kvtop_lib.note import render_note
from kvtop_lib.note.page import LIMIT_BYTES, check
from kvtop_lib.note.publish import publish
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402

pytestmark = pytest.mark.notebook


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic")


@pytest.fixture(scope="module")
def published(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "synthetic"
    return folder, publish(run, folder)


def test_acceptance(run, tmp_path):
    shown = "\n".join(execute("30_acceptance", tmp_path, run=str(run)))
    assert re.search(r"mtp_w2 +1 +1\.7\b", shown)
    assert re.search(r"mtp_w4 +32 +2\.4\b", shown)


def test_iterations(run, tmp_path):
    shown = "\n".join(execute("40_iterations", tmp_path, run=str(run)))
    # at c = 1, log 1.7 (tokens) and log(1.3 / 1.7) (time) make up log 1.3
    assert re.search(r"mtp_w2 +1 +-0\.268", shown) and re.search(r" 0\.531", shown)


def test_decision(run, tmp_path):
    shown = "\n".join(execute("50_decision", tmp_path, run=str(run)))
    found = json.loads((run / "decision.json").read_text())
    ranges = {a["arm"]: a["ranges"] for a in found["decisions"][0]["arms"]}
    assert ranges["mtp_w2"][0] == {"verdict": "better", "from": 1, "to": 8}
    assert re.search(r"mtp_w2: crossover at load 16", shown) and "no A/A pair" in shown


@pytest.mark.parametrize("arms", [{"baseline"}, None])
def test_without_a_valid_point_of_the_baseline_the_run_still_gets_its_note(arms, tmp_path):
    run = truth.write_run(tmp_path / "run")
    lines = [json.loads(x) for x in (run / "results.jsonl").read_text().splitlines()]
    kept = ("schema", "run", "arm", "block", "workload", "load", "c", "attempt", "counts")
    for i, line in enumerate(lines):
        if arms is None or line["arm"] in arms:  # None: every arm
            lines[i] = {k: line[k] for k in kept if k in line}
            lines[i] |= {"status": "invalid", "reason": "other programs took 40.0% of the CPU"}
    (run / "results.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    for name in ("30_acceptance", "40_iterations"):
        execute(name, tmp_path, run=str(run))
    assert any("no point of 'baseline' is ok" in x for x in execute("50_decision", tmp_path,
                                                                     run=str(run)))  # fmt: skip
    found = json.loads((run / "decision.json").read_text())
    assert found["decisions"] == [] and "make retry" in found["nothing"]
    page = render_note(run, tmp_path / "note.html").read_text(encoding="utf-8")
    assert "nothing to compare yet" in page and "40.0% of the CPU" in page


def test_simulation(tmp_path):
    shown = "\n".join(execute("60_simulation", tmp_path, runs=400))
    called = float(re.search(r"A/A called different: ([\d.]+)%", shown).group(1))
    assert 3 < called < 7.5
    held = [float(x) for x in re.findall(r"in its interval ([\d.]+)%", shown)]
    assert len(held) == 3 and min(held) > 91


def test_the_note_is_one_small_file_that_fetches_nothing(published):
    folder, _ = published
    html = (folder / "note.html").read_text()
    assert len(html.encode()) < LIMIT_BYTES
    assert html.count("vega-embed") and html.count("<script>") == 2  # runtime once, page once
    assert note_numbers.untraced_digits(html) == []
    assert len(note_numbers.traced(html)) > 100
    assert "<script>alert" not in html and "<img src=x" not in html
    assert str(folder.parent) not in html and "injected" not in html  # no path of this machine
    assert html.count('class="static"') == 10 and html.count('class="spec"') == 10


def test_a_page_that_would_fetch_is_refused():
    bad_pages = (
        '<img src="https://x.org/a.png">',
        "<link href='//x.org/a.css'>",
        "<style>@import 'http://x.org'</style>",
        "<p style='background:url(//x)'>",
    )
    for bad in bad_pages:
        with pytest.raises(KvtopError, match="from outside"):
            check(f"<html><p>text https://x.org is fine</p>{bad}</html>")
    check("<p>see https://x.org</p><script>var a = ' src=//not-markup'</script>")
    with pytest.raises(KvtopError, match="MB, more than 2 MB"):
        check("x" * (LIMIT_BYTES + 1))


def test_the_page_of_the_copy_is_that_of_the_run(run, published, tmp_path):
    """Byte by byte, but for the file that holds the factors of the ratio."""
    folder, _ = published
    own = render_note(run, tmp_path / "own.html").read_text()
    copied = (folder / "note.html").read_text()
    assert "factors.jsonl#" in copied and "iterations.parquet#" not in copied
    assert own.replace("iterations.parquet#", "factors.jsonl#") == copied


def test_a_published_copy_is_small_and_whole(run, published):
    folder, files = published
    names = {f.relative_to(folder).as_posix() for f in files}
    assert {"note.html", "results.jsonl", "manifest.json", "measured.md", "factors.jsonl"} <= names
    assert {"figures/throughput.png", "figures/ratio.svg", "figures/mechanism-2.png"} <= names
    assert (folder / "results.jsonl").read_bytes() == (run / "results.jsonl").read_bytes()
    assert "baseline/deploy/deployment.json" in names and not any("parquet" in n for n in names)
    csv = (folder / "figures" / "ratio.csv").read_text()
    assert csv.splitlines()[1].startswith('mtp_w2,"MTP, width 2",1,1.3')
    assert sum(f.stat().st_size for f in files) < 4_000_000


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(KvtopError, match="holds no results.jsonl"):
        render_note(tmp_path, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()

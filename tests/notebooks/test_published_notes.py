"""The notes of published evidence and of two runs, executed as they ship."""

import sys
from pathlib import Path

import pytest

from kvtop_lib.note import render_note
from kvtop_lib.note.command import note
from kvtop_lib.note.page import LIMIT_BYTES, check
from kvtop_lib.note.publish import publish
from kvtop_lib.terms import KvtopError

REPO = Path(__file__).parents[2]
sys.path.insert(0, str(REPO / "tests" / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402

pytestmark = pytest.mark.notebook
FIGURES = {
    "glm53": {"core", "throughput", "ratio"},
    "qwen35": {"core", "throughput", "ratio", "per_request", "views", "active"},
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_published_source_becomes_a_small_page_with_its_figures(name, tmp_path):
    files = publish(f"published:{name}", tmp_path)
    html = (tmp_path / "note.html").read_text()
    check(html)
    assert len(html.encode()) <= LIMIT_BYTES and html.count("<h1>") == 1
    assert note_numbers.untraced_digits(html) == []
    assert len(note_numbers.traced(html)) > 60
    for kind in ("csv", "svg", "png"):
        assert {f.stem for f in files if f.suffix == f".{kind}"} == FIGURES[name]
    committed = (REPO / "outputs" / "published" / name / "note.html").read_text()
    assert note_numbers.traced(committed) == note_numbers.traced(html), "publish it again"


def test_a_yaml_file_elsewhere_and_two_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path))
    page = note([str(REPO / "params" / "published" / "glm53.yaml")])
    assert page == tmp_path / "notes" / "glm53.html"
    assert "GLM-5.3" in page.read_text()
    for name in ("first", "second"):
        truth.write_run(tmp_path / "runs" / name)
    page = note(["first", "second"], compare=True)
    assert page == tmp_path / "notes" / "first-and-second.html"
    html = page.read_text()
    check(html)
    assert note_numbers.untraced_digits(html) == []
    assert "Two runs compared" in html


def test_a_fault_is_said_before_a_kernel_starts(tmp_path):
    with pytest.raises(KvtopError, match="no published 'glm'"):
        render_note("published:glm", tmp_path / "out.html")
    assert not list(tmp_path.iterdir())

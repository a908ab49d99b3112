"""Form of the note: labels that keep apart, characters that no picture can hold, clear faults."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from kvtop_lib.figures import labels, to_png, to_spec, to_svg
from kvtop_lib.figures.static import printable
from kvtop_lib.note import Article, plates, render_note
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.note.publish import main as publish
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402

ODD = "MTP\x00\x01\x1b[31m\ud800\ufffe width 2"


@pytest.fixture
def folder(tmp_path):
    return truth.write_run(tmp_path / "synthetic")


def rewrite(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# -- labels -------------------------------------------------------------------------------
def test_a_lone_label_stands_to_the_right_unless_the_edge_is_there():
    assert labels.place([(0.5, 0.5)], ["1"], [0], 300) == ["right"]
    assert labels.place([(1.0, 0.5)], ["c = 32"], [0], 300) == ["left"]


def test_boxes_by_hand():
    assert labels.box(100, 50, "ab", "right") == pytest.approx((108, 44.5, 121.2, 55.5))
    assert labels.box(100, 50, "ab", "above") == pytest.approx((93.4, 32.5, 106.6, 43.5))
    assert labels.overlap((0, 0, 2, 2), (1, 1, 3, 3))
    assert not labels.overlap((0, 0, 2, 2), (2, 0, 4, 2))


def test_two_labels_beside_each_other_do_not_read_as_one():
    below = [((0.0, y), (1.0, y)) for y in (0.5, 0.45)]  # so that both can only stand above
    for apart_px, second in ((7.2, None), (14.4, "above")):  # a character is 6.6 pixels wide
        at = [(0.5, 0.5), (0.5 + apart_px / 600, 0.5)]
        sides = labels.place(at, ["2", "4"], [0, 1], 300, widths_px=(600,), lines=below)
        assert sides == ["above", second]


def test_crowded_labels_never_touch_and_ends_come_first():
    points = [(0.5, 0.5), (0.51, 0.5), (0.52, 0.51), (0.53, 0.5), (0.9, 0.9), (0.91, 0.9)]
    texts = ["c = 1", "2", "4", "c = 8", "c = 1", "c = 8"]
    sides = labels.place(points, texts, [0, 3, 4, 5, 1, 2], 300)
    assert all(sides[i] for i in (0, 3, 4, 5))
    for width in labels.WIDTHS_PX:
        at = [(x * width, (1 - y) * 300) for x, y in points]
        boxes = [labels.box(*p, t, s) for p, t, s in zip(at, texts, sides, strict=True) if s]
        for i, a in enumerate(boxes):
            assert not any(labels.overlap(a, b) for b in boxes[i + 1 :])
            for x, y in at:
                assert not labels.overlap(a, (x - 4, y - 4, x + 4, y + 4))


def test_lines_that_run_through_a_box_by_hand():
    box = (0, 0, 10, 4)
    for ends in (((-5, 2), (15, 2)), ((5, -9), (5, 9)), ((-1, 5), (6, -1)), ((2, 1), (3, 2))):
        assert labels.crosses(ends, box) and labels.crosses(ends[::-1], box), ends
    for ends in (((-5, 5), (15, 5)), ((11, -9), (11, 9)), ((-9, 2), (-1, 2)), ((8, -3), (13, 2))):
        assert not labels.crosses(ends, box), ends


def test_a_label_keeps_off_lines_and_is_left_out_unless_it_is_needed():
    level = [((0.0, 0.5), (1.0, 0.5))]
    assert labels.place([(0.5, 0.5)], ["1"], [0], 300, lines=level) == ["above"]
    fan = [((0.5, 0.5), (x, y)) for x in (0.4, 0.47, 0.5, 0.53, 0.6) for y in (0.4, 0.5, 0.6)]
    assert labels.place([(0.5, 0.5)], ["c = 1"], [0], 300, lines=fan) == [None]
    assert labels.place([(0.5, 0.5)], ["c = 1"], [0], 300, lines=fan, needed=[0]) == ["right"]


def test_the_plane_names_the_ends_of_every_path(folder):
    spec = to_spec(plates.plane(Evidence.load(folder)).charts[0])
    texts = [x for x in spec["layer"] if (x["mark"] or {}).get("type") == "text"]
    rows = [r for x in texts for r in spec["datasets"][x["data"]["name"]]]
    named = {(r["title"], r["label"]) for r in rows}
    assert {("MTP, width 2", "c = 1"), ("MTP, width 2", "c = 32")} <= named
    assert all(r["label"] in (f"{r['c']}", f"c = {r['c']}") for r in rows)


# -- characters ---------------------------------------------------------------------------
def test_unprintable_characters_are_replaced_and_seen():
    assert printable("a\x00b\ud800c\x7fd\ufffe") == "a\ufffdb\ufffdc\ufffdd\ufffd"
    assert printable("tab\t line\n é 中 😀") == "tab\t line\n é 中 😀"
    assert printable({"k\x01": ["\x02", 1, None]}) == {"k\ufffd": ["\ufffd", 1, None]}


def test_a_manifest_with_control_characters_still_makes_pages_and_pictures(folder):
    rewrite(folder / "manifest.json", '"MTP, width 2"', json.dumps(ODD))
    rewrite(folder / "results.jsonl", "the server stopped", "the \\u0007server\\ud801 stopped")
    note = Article(folder)
    html = "".join([note.head(), note.tiles(), note.method(), note.caveats()])
    for plate in note.plates().values():
        html += note.figure(plate.name)
        for chart in plate.charts:
            assert "MTP\ufffd\ufffd\ufffd[31m" in to_svg(chart) or plate.name == "core"
            assert to_png(chart, width=300, scale=1).startswith(b"\x89PNG")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", html)
    assert html.encode("utf-8")


# -- faults -------------------------------------------------------------------------------
NO_MANIFESTS = ("[]", '"x"', "3", '{"arms": 5}', '{"arms": {"baseline": 1}}',
                '{"arms": [{"title": "x"}]}', '{"arms": {"a": {"title": 3}}}')  # fmt: skip


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_a_manifest_that_is_none_is_refused_in_one_sentence(folder, text, capsys):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(KvtopError, match="manifest.json is no manifest: .*measure again"):
        render_note(folder, folder / "note.html")
    assert publish([str(folder), str(folder / "copy")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_what_cannot_be_read_or_written_is_one_sentence(folder, tmp_path, monkeypatch):
    (folder / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(KvtopError, match="manifest.json is not JSON"):
        Article(folder)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    with pytest.raises(KvtopError, match="manifest.json cannot be read: Is a directory"):
        Article(folder)
    truth.write_run(tmp_path / "other")
    (tmp_path / "other" / "results.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(KvtopError, match="not UTF-8"):
        Article(tmp_path / "other")


def test_a_page_that_cannot_be_written_leaves_nothing(folder, tmp_path, monkeypatch):
    from kvtop_lib.note import page

    monkeypatch.setattr(page, "execute", lambda name, given: None)
    monkeypatch.setattr(page, "export", lambda notebook, title: "<p>page</p>")
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(KvtopError, match="taken cannot be written: Is a directory"):
        render_note(folder, target)
    (tmp_path / "file").write_text("x")
    with pytest.raises(KvtopError, match="cannot be written"):
        render_note(folder, tmp_path / "file" / "note.html")
    assert sorted(os.listdir(tmp_path)) == ["file", "synthetic", "taken"]


# -- the isolation pair of a run ----------------------------------------------------------
def test_a_run_with_the_isolation_pair_has_it_as_core_result(folder):
    for name in ("manifest.json", "results.jsonl"):
        text = (folder / name).read_text()
        text = text.replace('"mtp_w4"', '"mtp_width_off"').replace('"ngram"', '"mtp_width_on"')
        (folder / name).write_text(text)
    manifest = json.loads((folder / "manifest.json").read_text())
    for arm, policy in (("mtp_width_off", "fixed:1"), ("mtp_width_on", "fixed:2")):
        manifest["arms"][arm]["draft"] = {"method": "mtp", "width": 2, "policy": policy}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ev = Evidence.load(folder)
    assert ev.drafting == ["mtp_w2", "mtp_width_on"], "an arm that never drafts is not one"
    core = plates.core(ev)
    ratio = {c: truth.RATIO["ngram"][c] / truth.RATIO["mtp_w4"][c] for c in (1, 32)}
    off, on = core.data[core.data["drafting"] == "off"], core.data[core.data["drafting"] == "on"]
    assert off["c"].tolist() == [1, 32]
    base = [truth.output_tok_s("mtp_w4", b, 1) for b in (1, 2)]
    assert off["tok_s"].iloc[0] == pytest.approx(sum(base) / 2)
    assert [x.ratio for x in ev.isolation.changes("mtp_width_on")] == pytest.approx(
        [truth.RATIO["ngram"][c] / truth.RATIO["mtp_w4"][c] for c in truth.LOADS], rel=0.011
    )
    assert len(on) == 2 and ratio[1] < 1 < ratio[32]
    text = core.caption[1].striptags().replace("\u00a0", " ")
    assert "one configuration but for the draft width" in text
    assert "At c = 1 switching drafting off gives +9.1 %" in text


def test_a_window_of_one_load_is_named_in_the_method(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["profile"]["windows"] = {"c32": 31.0}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    text = re.sub("<[^>]+>", "", Article(folder).method()).replace("\xa0", " ")
    assert "31 s window at c32" in text

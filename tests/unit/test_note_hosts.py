"""Where a run was measured, as the page says it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib.note import Article
from kvtop_lib.note.caveats import caveats

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402

ONE, OTHER = {"cpu_model": "x", "cores": 2}, {"cpu_model": "y", "cores": 2}


def place(run: Path, block: int, machine: dict, booted: str) -> None:
    for arm in ("baseline", "mtp_w2"):
        file = run / arm / f"b{block}" / "deployment.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        told = json.loads(file.read_text()) if file.is_file() else {}
        file.write_text(json.dumps({**told, "machine": machine, "booted_utc": booted}))


def hosts(run: Path) -> str:
    (text,) = [t for t in caveats(Article(run).ev) if "Other hosts" in t]
    return " ".join(Markup(text).striptags().replace("\u00a0", " ").split())


@pytest.mark.parametrize(
    ("sittings", "says"),
    [
        ([], None),
        ([(ONE, "2026-01-01T00:00")] * 2, None),
        ([(ONE, "2026-01-01T00:00"), (ONE, "2026-01-02T00:00")], "2 sittings, on this kind of mac"),
        (
            [(ONE, "2026-01-01T00:00"), (OTHER, "2026-01-01T00:00")],
            "2 sittings, on machines of se",
        ),
    ],
)
def test_blocks_of_several_sittings_are_called_so(tmp_path, sittings, says):
    run = truth.write_run(tmp_path / "synthetic")
    for block, (machine, booted) in enumerate(sittings, 1):
        place(run, block, machine, booted)
    whole = "each measured in one"
    text = hosts(run)
    assert "shared one machine" in text
    assert ("sitting" in text) == (says is not None)
    if says:
        assert says in text and whole in text
        html = str(Markup("").join(caveats(Article(run).ev)))
        assert note_numbers.held(run, html)  # the count equals what the files say


def test_a_block_of_two_sittings_is_not_called_whole(tmp_path):
    run = truth.write_run(tmp_path / "synthetic")
    place(run, 1, ONE, "2026-01-01T00:00")
    place(run, 2, ONE, "2026-01-01T00:00")
    file = run / "baseline" / "b2" / "deployment.json"
    file.write_text(file.read_text().replace("01-01T", "01-02T"))
    assert "2 sittings" in hosts(run) and "though not every block in one" in hosts(run)

"""The committed copies of runs: page, decision and policies are of the results beside them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvtop_lib import policies
from kvtop_lib.decision import decide
from kvtop_lib.store import Run, write_json
from kvtop_lib.tables import readme_table

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402

ROOT = Path(__file__).parents[2]
COPIES = sorted(file.parent for file in (ROOT / "outputs" / "published").glob("*/results.jsonl"))
WITH_POLICIES = [folder for folder in COPIES if (folder / "policies.json").exists()]


def rounded(file):
    """A document whose last digits, which differ between processors, do not matter."""
    text = file.read_text(encoding="utf-8")
    return json.loads(text, parse_float=lambda x: float(f"{float(x):.6g}"))


def each(folders):
    return pytest.mark.parametrize("folder", folders, ids=[f.name for f in folders])


def test_the_runs_that_the_readme_links_are_there():
    assert {"reproduce", "policies", "thorough"} <= {f.name for f in COPIES}
    assert "policies" in {f.name for f in WITH_POLICIES}


@each(COPIES)
def test_every_number_of_the_page_is_that_of_the_records(folder):
    page = (folder / "note.html").read_text(encoding="utf-8")
    article = page[page.index("<main") : page.index("</main>")]
    assert note_numbers.held(folder, article).total() > 60


@each(COPIES)
def test_the_table_of_the_readme_is_that_of_the_records(folder):
    assert (folder / "measured.md").read_text(encoding="utf-8").strip() == readme_table(Run(folder))


def test_the_readme_shows_the_table_of_the_thorough_run():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme_table(Run(ROOT / "outputs" / "published" / "thorough")) in readme


@each(COPIES)
def test_the_decision_is_that_of_the_records_and_its_commands_name_no_machine(folder, tmp_path):
    write_json(tmp_path / "found.json", decide(Run(folder)))
    found, stored = (
        rounded(f / n) for f, n in ((tmp_path, "found.json"), (folder, "decision.json"))
    )
    for part in ("rule", "how_sure", "noise_floor", "multiplicity", "causes", "decisions"):
        assert stored[part] == found[part], part
    for decision in stored["decisions"]:
        command = decision["recommended"]["command"]
        assert "-m sglang.launch_server" in command and "--port 30000" in command
        assert " /" not in command and "=/" not in command


@each(WITH_POLICIES)
def test_the_claims_about_policies_are_those_of_the_records(folder):
    stored = json.loads((folder / "policies.json").read_text(encoding="utf-8"))
    found = policies.find(Run(folder))
    assert [c["text"] for c in stored["claims"]] == [str(c) for c in found.claims]
    assert len(stored["against"]) == len(found.against) > 0

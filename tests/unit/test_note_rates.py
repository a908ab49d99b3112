"""Arrival rates: figures of their own, never on an axis with lanes, on pages with and without."""

import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib import figures, stats, tables
from kvtop_lib.note import Article, plates
from kvtop_lib.note.caveats import caveats
from kvtop_lib.note.compared import ComparedArticle
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_rates as rates  # noqa: E402
import synthetic_run as truth  # noqa: E402

OWN = ["rate_ttft", "rate_goodput", "rate_flow"]


def plain(html: str) -> str:
    return " ".join(Markup(html).striptags().replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return rates.add(truth.write_run(tmp_path_factory.mktemp("mixed") / "synthetic"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "synthetic"
    return rates.add(truth.write_run(folder), only=True)


def page(folder) -> str:
    note = Article(folder)
    return "\n".join([
        note.head(), note.tiles(), *(note.figure(name) for name in plates.ALL), note.lossless(),
        note.method(), note.caveats(), note.reproduce(),
    ])  # fmt: skip


def test_kinds_of_load_are_told_apart_by_name(alone, mixed):
    assert stats.axes(Run(alone).results()) == ["rates"]
    assert stats.axes(Run(mixed).results()) == ["lanes", "rates"]
    found = tables.points(Run(mixed), "rates")
    assert sorted(set(found["c"])) == [0.5, 1.0, 2.0] and set(found["axis"]) == {"rates"}
    assert sorted(set(tables.points(Run(mixed))["c"])) == list(truth.LOADS)
    assert sorted(set(tables.points(Run(alone))["c"])) == [0.5, 1.0, 2.0]
    with pytest.raises(KvtopError, match="no point by lanes"):
        tables.points(Run(alone), "lanes")


def test_one_kind_of_arrivals_is_drawn_and_the_others_are_counted(tmp_path):
    burst = rates.line("baseline", 1, 0, load="r0.50-gamma0.25")
    steps = rates.line("baseline", 1, 0, load="steps-0.50x30-1.00x30", rate=None)
    run = rates.add(truth.write_run(tmp_path / "r"), burst, steps)
    ev = Evidence.load(run)
    assert len(ev.rates.points) == 12 and "r0.50-gamma0.25" not in set(ev.rates.points["load"])
    assert any("2 points have arrivals of another kind" in plain(c) for c in caveats(ev))


def test_lanes_and_rates_are_in_figures_of_their_own(mixed):
    found = Article(mixed).plates()
    assert set(OWN) < set(found) and "throughput" in found
    for name, plate in found.items():
        loads = {float(c) for c in plate.data.get("c", [])}
        if name in OWN:
            assert loads == set(rates.RATES) and "starts_s" in plate.table, name
        elif loads:
            assert loads <= set(truth.LOADS) and "starts_s" not in plate.table, name
    for name, title in (("rate_ttft", "arrival rate"), ("throughput", "concurrency c")):
        spec = figures.to_spec(found[name].charts[0])
        (axis,) = {x["encoding"]["x"]["title"] for x in spec["layer"] if "x" in x["encoding"]}
        assert axis.startswith(title)


def test_lanes_and_rates_on_one_axis_are_refused(mixed):
    both = [tables.by_load(tables.points(Run(mixed), a), "output_tok_s") for a in stats.axes(
        Run(mixed).results())]  # fmt: skip
    import pandas as pd

    with pytest.raises(ValueError, match="lanes and rates do not go on one axis"):
        figures.throughput(pd.concat(both, ignore_index=True))


@pytest.mark.parametrize("kind", ["mixed", "alone"])
def test_every_number_is_traced_and_recomputed(kind, request):
    folder = request.getfixturevalue(kind)
    # decision.json is not written here; `test_note_sections` holds what is of it
    assert note_numbers.held(folder, page(folder), skip="decision.json").total() > 40


def test_a_page_of_rates_speaks_of_waiting(alone):
    note = Article(alone)
    text = plain(page(alone))
    # 0.18 / 0.20 is 10 % less, 4.0 / 2.0 twice as long
    assert "depends on the arrival rate" in plain(note.head())
    assert "changes by −10 % at 0.50 starts/s and +100 % at 2.00 starts/s" in plain(note.head())
    assert "−10 %" in plain(note.tiles()) and "+100 %" in plain(note.tiles())
    assert "is shorter at 0.50 starts/s (−10 %) and is longer at 2.00 starts/s (+100 %)" in text
    assert "open loop at 0.50 starts/s, 1.00 starts/s and 2.00 starts/s" in text
    assert "closed loop, c =" not in text and note.figure("throughput") == ""
    assert "Rates outside 0.50 starts/s to 2.00 starts/s" in text
    assert "12 of 12 points are ok" in plain(note.tiles())


def test_goodput_and_flow_by_hand(mixed):
    note = Article(mixed)
    text = plain(note.figure("rate_goodput"))
    assert "about as many at 0.50 starts/s and fewer at 2.00 starts/s" in text
    assert "At 2.00 starts/s: 1.00 requests/s become 0 requests/s" in text
    text = plain(note.figure("rate_flow"))
    # 3.6 and 3.0 of 4.0 asked for: 10 and 25 % short
    assert "Baseline from 2.00 starts/s on and MTP, width 2 from 2.00 starts/s on" in text
    assert "At 2.00 starts/s MTP, width 2 ended 3.00 requests/s of 4.00 requests/s" in text


def test_a_percentile_without_end_is_a_cross_at_the_top(mixed):
    tail = Article(mixed).plate("rate_ttft").charts[1]
    spec = figures.to_spec(tail)
    crosses = [r for rows in spec["datasets"].values() for r in rows if "floor" in r]
    assert {(r["title"], r["c"]) for r in crosses} == {("Baseline", 2.0), ("MTP, width 2", 2.0)}
    assert [r["floor"] for r in crosses] == pytest.approx([1.2] * 2), "the largest finite one"
    assert "without a first token" in crosses[0]["reason"]


def test_the_page_of_lanes_counts_every_point(mixed):
    note = Article(mixed)
    assert "58 of 60 points are ok" in plain(note.tiles())  # 48 and 12, two are not ok
    text = plain(note.method())
    assert "closed loop, c = 1, 2, 4, 8, 16 and 32; open loop at" in text
    assert "No arrival rate was offered" not in plain(note.caveats())
    assert "+30 %" in plain(note.tiles()), "the headline speaks of lanes"


def test_a_failed_rate_is_told_by_its_name(tmp_path):
    failed = {"arm": "mtp_w2", "block": 3, "workload": "agent", "load": "r2.00", "c": None,
              "rate": 2.0, "attempt": 1, "status": "failed", "reason": "gone"}  # fmt: skip
    run = rates.add(truth.write_run(tmp_path / "r"), failed)
    assert "MTP, width 2, r2.00, block 3: failed (gone)" in plain(Article(run).caveats())


def test_the_readme_has_a_table_for_each_kind(mixed, alone):
    lanes, open_ = tables.readme_table(Run(mixed)).split("\n\n")
    assert lanes.startswith("| arm | c |") and len(lanes.splitlines()) == 2 + 24
    assert "| MTP, width 2 | 2 | 3.00 | 4.00 | ∞ | 0.00 |" in open_
    assert tables.readme_table(Run(alone)) == open_


def test_a_run_of_lanes_and_one_of_rates_do_not_compare(alone, mixed):
    with pytest.raises(KvtopError, match="loads by rates, the other by lanes"):
        ComparedArticle(alone, mixed)
    chart = ComparedArticle(alone, alone)._between().charts[0]
    assert "arrival rate" in str(figures.to_spec(chart))

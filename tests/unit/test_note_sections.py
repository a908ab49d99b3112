"""Sections that a run's note has where its records allow: against numbers worked out by hand."""

import json
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib import decision, figures
from kvtop_lib.decision import write_decision
from kvtop_lib.note import Article, plates, publish
from kvtop_lib.note.caveats import caveats
from kvtop_lib.note.quoted import QuotedArticle
from kvtop_lib.store import Run
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402

OWN = ("goodput", "ended", "decomposition", "prediction", "ablation", "decision")
TARGETS = {"ttft_s": 1.5, "tpot_s": 0.25}
GOOD = {  # requests/s within the targets, at 1 and at 32 lanes
    "baseline": (0.5, 2.0), "mtp_w2": (0.75, 0.0), "mtp_w4": (0.5, 0.0), "ngram": (0.5, 1.0),
}  # fmt: skip


def plain(html: str) -> str:
    return " ".join(Markup(html).striptags().replace("\u00a0", " ").split())


def rewrite(folder: Path, change) -> Path:
    """Every line of results.jsonl that is ok, changed in place."""
    file = folder / "results.jsonl"
    lines = [json.loads(x) for x in file.read_text().splitlines()]
    for line in lines:
        if line["status"] == "ok":
            change(line)
    file.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def with_targets(line: dict) -> None:
    """Goodput of lines at 1 and 32 lanes by `GOOD`, 100 tokens a request; 1.0 elsewhere."""
    low, high = GOOD[line["arm"]]
    rate = {1: low, 32: high}.get(line["c"], 1.0)
    share = 0.0 if not rate else 0.9
    line["goodput"] = {
        "requests_s": rate, "tok_s": 100 * rate, "attainment": share, "targets": TARGETS,
    }  # fmt: skip


def as_predicted(line: dict) -> None:
    """Iteration time 10 ms + 1 ms per verified token + 0.5 ms per draft."""
    width, batch = truth.WIDTH[line["arm"]], line["decoding_mean"]
    line["iteration_s"]["p50"] = 0.010 + 0.001 * batch * width + 0.0005 * batch * (width - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return truth.write_run(tmp_path_factory.mktemp("runs") / "synthetic")


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A run with targets, an exact cost model, and decision.json beside its records."""
    run = truth.write_run(tmp_path_factory.mktemp("rich") / "synthetic")
    rewrite(run, with_targets)
    rewrite(run, as_predicted)
    write_decision(Run(run))
    return run


def test_a_section_is_there_only_where_the_records_hold_its_data(folder, rich, tmp_path):
    note = Article(folder)
    assert [n for n in OWN if note.has(n)] == ["ended", "decomposition", "prediction", "decision"]
    assert note.section("Goodput", "Some prose.", figure="goodput") == ""
    assert note.section("Ended", "Some prose.", figure="ended").startswith("<h2>Ended</h2>")
    assert Article(rich).has("goodput")
    copy = tmp_path / "copy"  # without raw records, as a published one
    copy.mkdir()
    for name in ("manifest.json", "results.jsonl"):
        (copy / name).write_bytes((folder / name).read_bytes())
    assert [n for n in OWN if Article(copy).has(n)] == ["ended", "prediction", "decision"]


def test_every_number_is_traced_and_can_be_recomputed(rich):
    note = Article(rich)
    page = "\n".join(note.figure(name) for name in OWN if note.has(name))
    checked = note_numbers.held(rich, page)
    assert checked["iterations.parquet"] == 10, "five factors at both ends of the load"
    assert checked["decision.json"] > 20 and checked["results.jsonl"] > 30


@pytest.mark.parametrize(("profile", "named"), [("reproduce", ""), ("wide_2", " PROFILE=wide_2")])
def test_the_commands_make_this_page(tmp_path, profile, named):
    run = truth.write_run(tmp_path / "r")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profile"]["id"] = profile
    (run / "manifest.json").write_text(json.dumps(manifest))
    said = plain(Article(run).reproduce())
    assert f"to this page: make reproduce{named}. " in said and f"make note{named}." in said


def test_a_copy_is_enough_for_the_whole_page(rich, tmp_path):
    copy = publish.records(Article(rich), tmp_path / "copy")
    own, copied = (whole(Article(folder)) for folder in (rich, copy))
    assert not list(copy.rglob("*.parquet")) and plain(own) == plain(copied)
    sources = [[v.source for v in note_numbers.traced(page)] for page in (own, copied)]
    assert [s.replace("iterations.parquet#", "factors.jsonl#") for s in sources[0]] == sources[1]
    assert note_numbers.held(copy, copied)["factors.jsonl"] == 10


def test_a_copy_of_a_copy_knows_which_lines_count(tmp_path):
    run = truth.write_run(tmp_path / "r")
    (run / "keys").mkdir()
    (run / "keys" / "ngram.key").write_text("another\n")  # its lines were measured under an old one
    copy = publish.records(Article(run), tmp_path / "copy")
    again = publish.records(Article(copy), tmp_path / "again")
    assert "ngram" not in set(Run(again).results()["arm"])
    for name in ("factors.jsonl", "results.jsonl", "decision.json", "measured.md"):
        assert (again / name).read_text() == (copy / name).read_text(), name


def whole(note: Article) -> str:
    figures = [note.figure(name) for name in plates.ALL if note.has(name)]
    return "\n".join([note.head(), note.tiles(), *figures, note.lossless(), note.method(),
                      note.caveats(), note.reproduce()])  # fmt: skip


def test_a_run_is_not_copied_onto_itself_and_damaged_factors_are_named(folder, tmp_path):
    with pytest.raises(KvtopError, match="is the run itself; name another folder"):
        publish.records(Article(folder), folder)
    copy = publish.records(Article(folder), tmp_path / "copy")
    (copy / "factors.jsonl").write_text('{"point": "x"}\n')
    with pytest.raises(KvtopError, match="factors.jsonl, line 1: not a point's factors"):
        Article(copy).has("decomposition")


def test_goodput_by_hand(rich):
    text = plain(Article(rich).figure("goodput"))
    assert "with MTP, width 2 against the baseline: more at c = 1 and fewer at c = 32" in text
    for said in ("At c = 1: 0.500 requests/s become 0.750 requests/s, 50.0 tok/s become 75.0 tok/s",
                 "At c = 32: 2.00 requests/s become 0 requests/s, 200 tok/s become 0 tok/s",
                 "of the requests sent, a share of 0.900 and 0.",
                 "time to first token at most 1.50 s and time per further token at most 0.250 s",
                 ):  # fmt: skip
        assert said in text, said


def test_points_judged_by_different_targets_are_not_set_side_by_side(tmp_path):
    run = rewrite(truth.write_run(tmp_path / "r"), with_targets)

    def other(line):
        if line["arm"] == "ngram":
            line["goodput"]["targets"] = {"ttft_s": 9.0}

    assert not Article(rewrite(run, other)).has("goodput")


def test_requests_by_how_they_ended(folder, tmp_path):
    plate = Article(folder).plate("ended")
    found = {str(r["arm"]): (r["ok"].value, r["timeout"].value) for _, r in plate.sheet.iterrows()}
    # 6 c requests a point, loads 1 to 32 add up to 63; one timeout in every ok point at 32
    assert found["Baseline"] == (2 * 6 * 63, 2) and found["MTP, width 2"] == (756, 2)
    assert found["N-gram, width 4"] == (2 * 6 * 63 - 6 * 32, 1)
    assert found["MTP, width 4"] == (2 * 6 * 63 - 6 * 16, 2)
    text = plain(Article(folder).figure("ended"))
    assert "Not every request ended well: 7 timeout" in text
    assert "46 of 48 points are ok" in text

    def well(line):
        line["counts"]["timeout"], line["aborted_on_purpose"] = 0, 1

    text = plain(Article(rewrite(truth.write_run(tmp_path / "r"), well)).figure("ended"))
    assert "Every request that was sent in a window ended well, 2,736 in all" in text
    assert "46 were drawn beforehand" in text


def test_factors_of_the_ratio_by_hand(folder):
    """Ten iterations a point: 1.7 tokens against 1, and the busy share goes with their time."""
    plate = Article(folder).plate("decomposition")
    row = plate.data.set_index(["arm", "c"]).loc[("mtp_w2", 1)]
    assert row["acceptance"] == pytest.approx(1.7) and row["batch"] == pytest.approx(1)
    assert row["iteration_time"] == pytest.approx(1.3 / 1.7)
    assert row["busy_share"] == pytest.approx(1.7 / 1.3)
    assert row["residual"] == pytest.approx(1.3 / 1.7) and row["ratio"] == pytest.approx(1.3)
    assert not row["explained"] and row["lines"] == [(8, 1), (38, 44)]
    text = plain(Article(folder).figure("decomposition"))
    assert "leave more than 2 percent of the ratio of MTP, width 2 unexplained" in text
    assert "At c = 1: 1.70 (tokens per request and iteration) × 0.76 (iteration time)" in text
    assert "0.76 (residual) = 1.30" in text


def test_factors_that_make_up_the_ratio_are_said_to(folder):
    from kvtop_lib.note import parted

    ev = Article(folder).ev
    own = ev.decomposed[ev.decomposed["arm"] == "mtp_w2"].assign(residual=0.01, explained=True)
    claim, _ = parted.caption(ev, own)
    assert "make up the ratio of MTP, width 2 at every load, within 2 percent" in plain(claim)


def test_the_decision_is_told_with_its_ranges(folder):
    note = Article(folder)
    plate = note.plate("decision")
    rows = [
        (str(r["arm"]), r["from"].value, r["to"].value, str(r["verdict"]))
        for _, r in plate.sheet.iterrows()
    ]
    assert rows[:3] == [  # the true ratios are 1.3 1.25 1.2 1.1 1.0 0.9
        ("MTP, width 2", 1, 8, "better"), ("MTP, width 2", 16, 16, "no difference detected"),
        ("MTP, width 2", 32, 32, "worse"),
    ]  # fmt: skip
    text = plain(note.figure("decision"))
    assert "By the rule, drafting is not the default: every arm that is better" in text
    assert "MTP, width 2 up to c = 16" in text and "crossover at load 16" in text
    assert "The noise of this machine" not in text and "No A/A pair was run" in text


def test_an_arm_that_always_gains_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setitem(truth.RATIO, "mtp_w2", dict.fromkeys(truth.LOADS, 1.3))
    text = plain(Article(truth.write_run(tmp_path / "r")).figure("decision"))
    assert "By the rule, MTP, width 2 is the default: better at some load, worse at none" in text
    assert "no crossover: ahead at all" in text


def test_latency_targets_of_decision_json_are_kept(tmp_path):
    run = truth.write_run(tmp_path / "r")
    write_decision(Run(run), {"TTFT p90 1.7 s": {"ttft_s_p90": 1.7}})
    sheet = Article(run).plate("decision").sheet
    assert [str(x) for x in dict.fromkeys(sheet["target"])] == ["none", "TTFT p90 1.7 s"]


def test_a_cost_model_that_holds_is_told_with_its_terms(rich):
    text = plain(Article(rich).figure("prediction"))
    assert "by 0.0 percent in the median and by 0.0 percent at most" in text
    assert "10.0 ms per iteration, 1.00 ms per verified token and 0.500 ms per draft" in text
    held = Article(rich).plate("prediction").data
    assert held["error"].abs().max() < 1e-6 and len(held) == len(set(map(str, held["lines"])))


def test_published_formulae_stand_beside_the_measurement(rich, tmp_path):
    """Width 2 accepts 0.7 of its drafts; 0.9 c requests decode at c lanes."""
    sheet = Article(rich).plate("prediction").sheet
    first = {k: getattr(v, "value", v) for k, v in sheet.iloc[0].items()}
    assert first["load"] == 1 and first["draft accepted"] == pytest.approx(0.7)
    # drafts and extends 0.35 of an iteration that is 1.7 / 1.3 of the baseline's, 0.9 of it forward
    assert first["draft / forward"] == pytest.approx(0.35 * 1.7 / 1.3 / 0.9, rel=0.01)
    assert first["Leviathan et al."] == pytest.approx(1.7 / (1 + 0.35 * 1.7 / 1.3 / 0.9), rel=0.01)
    # the iteration time that `as_predicted` wrote: 10 + 0.9 ms against 10 + 1.8 + 0.45 ms
    assert first["SmartSpec"] == pytest.approx(1.7 * 10.9 / 12.25)
    assert first["cost model"] == pytest.approx(1.7 * 10.9 / 12.25)
    assert first["measured"] == pytest.approx(1.3)
    last = sheet.iloc[-1]
    assert last["load"].value == 32 and last["measured"].value == pytest.approx(0.9)
    lone = 1.7 / (1 + 0.35 * 1.7 / 0.9 / 0.9)  # its iteration is 1.7 / 0.9 of the baseline's there
    assert last["Leviathan et al."].value == pytest.approx(lone, rel=0.01)
    text = plain(Article(rich).figure("prediction"))
    assert "ICML 2023, theorem 3.8" in text and "takes verifying several tokens to cost no" in text

    copy = tmp_path / "copy"  # without recorded iterations a draft has no known cost
    copy.mkdir()
    for name in ("manifest.json", "results.jsonl"):
        (copy / name).write_bytes((rich / name).read_bytes())
    row = Article(copy).plate("prediction").sheet.iloc[0]
    assert (row["draft / forward"], row["Leviathan et al."]) == ("–", "–")
    assert row["SmartSpec"].value == pytest.approx(1.7 * 10.9 / 12.25)
    said = "Where iterations were not recorded, a draft has no known cost"
    assert said in plain(Article(copy).figure("prediction")) and said not in text


def test_simulated_acceptance_is_shown_and_never_the_default(tmp_path, monkeypatch):
    """An arm that gains at every load because its drafts are made up to be accepted."""
    monkeypatch.setitem(truth.RATIO, "mtp_w4", dict.fromkeys(truth.LOADS, 1.5))
    run = truth.write_run(tmp_path / "r")
    file = run / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["arms"]["mtp_w4"]["draft"]["simulated_accept_len"] = 4
    manifest["arms"]["mtp_w4"]["title"] = "MTP, every draft accepted (simulated)"
    file.write_text(json.dumps(manifest))
    record = run / "mtp_w4" / "deploy" / "deployment.json"
    exempt = json.loads(record.read_text()) | {"lossless": {"role": "exempt", "prompts": 0}}
    record.write_text(json.dumps(exempt))
    found = decision.decide(Run(run))["decisions"][0]
    assert "mtp_w4" not in {a["arm"] for a in found["arms"]}
    assert found["recommended"]["arm"] == "baseline"
    note = Article(run)
    assert "mtp_w4" not in note.ev.drafting and "mtp_w4" in set(note.ev.points["arm"])
    said = "Exempt, since acceptance is simulated: MTP, every draft accepted (simulated)."
    assert said in plain(note.lossless())


def test_how_outputs_part_is_told_beside_the_a_a_pair(tmp_path):
    run = truth.write_run(tmp_path / "r")
    found = {
        "per_1000_tokens": 2.5, "position": {"p50": 17.0}, "gap": {"p50": 0.0123},
    }  # fmt: skip
    mismatch = [{"prompt": 0, "position": 17, "baseline": 1, "arm": 2, "gap": 0.0123}]
    for arm, matched, gap in (("mtp_w2", 18, found["gap"]), ("baseline_aa", 19, None)):
        file = run / arm / "deploy" / "deployment.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        probe = {
            "role": "compared", "prompts": 20, "matched": matched, "mismatches": mismatch,
            "divergence": found | {"gap": gap},
        }  # fmt: skip
        file.write_text(json.dumps({"lossless": probe}))
    page = Article(run).lossless()
    text = plain(page)
    for said in (
        "18 of 20 outputs equal the baseline's, token by token. First differences: 2.50 per",
        "behind 17 equal tokens, where the log-probabilities of the two tokens are 0.0123 nats",
        "Between the baseline and itself (A/A) 19 of 20 outputs are equal. First differences",
    ):
        assert said in text, said
    assert note_numbers.held(run, page)


def test_ablations_by_hand(tmp_path):
    """At 1 lane both pairs gain as the arm does; the cap loses 30 % at 32."""
    run = truth.write_run(tmp_path / "r")
    for name in ("manifest.json", "results.jsonl"):
        text = (run / name).read_text()
        text = text.replace('"mtp_w4"', '"baseline_cap"').replace('"ngram"', '"baseline_kv"')
        (run / name).write_text(text.replace('"method": "baseline_kv"', '"method": "none"'))
    note = Article(run)
    rows = {
        (r["cause"].partition(":")[0], int(r["load"].value)): (str(r["change"]), r["what it does"])
        for _, r in note.plate("ablation").sheet.iterrows()
    }
    assert rows["admission", 32][0].replace("\u00a0", " ") == "−30 %"
    assert rows["admission", 32][1] == "lowers output"
    assert rows["memory", 1][1] == "raises output"
    assert rows["memory", 4][1] == "no difference detected"
    assert rows["memory", 32][1] == "not told from noise", "one of its blocks failed"
    text = plain(note.figure("ablation"))
    assert (
        "MTP, width 2 is ahead of the baseline at c = 1; no single cause is named: 2 pairs" in text
    )
    assert "Pairs that this run lacks: 6" in text
    assert not any("The cause." in c for c in caveats(note.ev))


def test_caveats_speak_of_targets_only_where_none_was_set(folder, rich):
    said = ["latency target was set" in " ".join(caveats(Article(f).ev)) for f in (folder, rich)]
    assert said == [True, False]


def test_every_chart_is_one_by_the_schema(rich):
    articles = [Article(rich), QuotedArticle("published:glm53"), QuotedArticle("published:qwen35")]
    charts = [c for a in articles for plate in a.plates().values() for c in plate.charts]
    assert len(charts) > 15
    for chart in charts:
        chart.to_dict(validate=True)


def test_charts_of_verdicts_and_predictions(folder):
    note = Article(folder)
    spec = figures.to_spec(note.plate("decision").charts[0])
    rows = next(r for r in spec["datasets"].values() if "verdict" in r[0])
    texts = {(r["title"], r["c"]): r["text"] for r in rows}
    assert texts["MTP, width 2", 1] == "▲ +30 %" and texts["MTP, width 2", 32] == "▼ −10 %"
    spec = figures.to_spec(note.plate("prediction").charts[0])
    points = next(r for r in spec["datasets"].values() if "predicted_s" in r[0])
    model = decision.decide(Run(folder))["cost_model"]
    assert len(points) == model["held_out_points"]
    worst = max(abs(r["predicted"] / r["measured"] - 1) for r in points)
    assert worst == pytest.approx(model["largest_error"])

"""Two runs side by side: what may be compared, and numbers that follow from both records."""

import json
import math
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

from kvtop_lib.note.command import note as render
from kvtop_lib.note.compared import ComparedArticle, check, differences, welch
from kvtop_lib.note.evidence import Evidence
from kvtop_lib.terms import KvtopError

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import note_numbers  # noqa: E402
import synthetic_run as truth  # noqa: E402

SPEED_UP = {"baseline": 1.10, "mtp_w2": 0.90}  # of the second run; other arms as in the first


def write(folder: Path, speed_up: dict[str, float] = SPEED_UP, **manifest) -> Path:
    """A run whose arms are faster by known factors, with other fields of the manifest."""
    run = truth.write_run(folder)
    lines = [json.loads(x) for x in (run / "results.jsonl").read_text().splitlines()]
    for line in lines:
        if line["status"] == "ok":
            line["output_tok_s"] *= speed_up.get(line["arm"], 1.0)
    (run / "results.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = json.loads((run / "manifest.json").read_text())
    for path, value in manifest.items():
        *above, last = path.split("__")
        inner = found
        for key in above:
            inner = inner[key]
        inner[last] = value
    (run / "manifest.json").write_text(json.dumps(found))
    return run


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write(folder / "first", {})
    write(folder / "second")
    return folder


@pytest.fixture(scope="module")
def article(base) -> ComparedArticle:
    return ComparedArticle(base / "first", base / "second")


def plain(html: str) -> str:
    return " ".join(Markup(html).striptags().replace("\u00a0", " ").split())


def test_ratios_are_the_known_ones(article):
    found = article.data.set_index(["arm", "c"])["mean"]
    assert found["baseline"].tolist() == pytest.approx([1.10] * 6)
    assert found["mtp_w2"].tolist() == pytest.approx([0.90] * 6)
    assert found["mtp_w4"].tolist() == pytest.approx([1.0] * 6)
    assert ("ngram", 32) in found.index, "one of its two blocks is ok in both runs"


def test_welch_by_hand():
    ratio, low, high = welch([1.0, math.e], [math.e, math.e**2])
    # logs 0, 1 and 1, 2: difference 1, variances 0.5 each, se sqrt(0.5), 2 degrees of freedom
    assert ratio == pytest.approx(math.e)
    half = 4.302652729911275 * math.sqrt(0.5)  # t(0.975, 2)
    assert (low, high) == (pytest.approx(math.exp(1 - half)), pytest.approx(math.exp(1 + half)))
    ratio, low, high = welch([2.0], [3.0, 3.0])
    assert ratio == pytest.approx(1.5) and math.isnan(low) and math.isnan(high)


def test_every_number_is_traced_and_recomputed(article, base):
    figures = [article.figure(name) for name in ("between", "gains")]
    others = [article.tiles(), article.differences(), article.caveats()]
    page = "\n".join([article.head(), *figures, *others])
    assert note_numbers.held(base, page).total() >= 20


def test_tiles_and_claims(article):
    assert "+10 %" in plain(article.tiles()) and "−10 %" in plain(article.tiles())
    text = plain(article.head())
    # 4 arms x 6 loads less the invalid and failed pairs' own; two arms differ, two do not
    assert "Of 24 points" in text and "6 give more output" in text and "6 less" in text
    gains = plain(article.figure("gains"))
    assert "in the first run +30 % at c = 1 and −10 % at c = 32" in gains
    # 1.30 x 0.90 / 1.10 = 1.0636, 0.90 x 0.90 / 1.10 = 0.7364
    assert "in the second run +6.4 % at c = 1 and −26 % at c = 32" in gains
    assert "Machine, model, workload, engine, plan and code agree" in article.differences()


@pytest.mark.parametrize(
    ("path", "value", "said", "group"),
    [
        ("machine__cores", 64, "machine.cores (2, 64)", "machine"),
        ("model__dtype", "bfloat16", "model.dtype (float32, bfloat16)", "model"),
        ("workload__trace", "other", "workload.trace (builtin:agent, other)", "workload"),
        ("engine__version", "0.6", "engine.version (0.5.23, 0.6)", "engine"),
        ("profile__window_s", 300.0, "profile.window_s (30.0, 300.0)", "plan"),
        ("profile__seed", 8, "profile.seed (7, 8)", "seed"),
        ("git__commit", "ff" * 20, "git.commit", "code"),
        ("arms__mtp_w2__draft", {"method": "mtp", "width": 3}, "arms.mtp_w2.draft", "arms"),
    ],
)
def test_undeclared_differences_are_refused_in_one_sentence(tmp_path, path, value, said, group):
    first, second = write(tmp_path / "first", {}), write(tmp_path / "second", **{path: value})
    with pytest.raises(KvtopError) as e:
        ComparedArticle(first, second)
    assert said in str(e.value) and f"--declare {group}" in str(e.value)
    assert "\n" not in str(e.value)
    article = ComparedArticle(first, second, [group])
    assert path.replace("__", ".") in article.differences()


def test_several_differences_name_every_group(tmp_path):
    first = Evidence.load(write(tmp_path / "first", {}))
    second = Evidence.load(write(tmp_path / "second", machine__cores=64, profile__seed=8))
    found = differences(first, second)
    assert [d.group for d in found] == ["machine", "seed"]
    with pytest.raises(KvtopError, match="and 1 more field; .*--declare machine,seed"):
        check(found, [])
    with pytest.raises(KvtopError, match="profile.seed.*--declare seed"):
        check(found, ["machine"])
    check(found, ["machine", "seed"])
    with pytest.raises(KvtopError, match="--declare 'colour' is unknown; it is one of: machine"):
        check(found, ["colour"])


def test_runs_without_a_shared_point_are_refused(tmp_path):
    first = write(tmp_path / "first", {})
    second = write(tmp_path / "second")
    rows = (second / "results.jsonl").read_text().splitlines()
    (second / "results.jsonl").write_text("\n".join(x for x in rows if '"c": 1,' in x) + "\n")
    rows = (first / "results.jsonl").read_text().splitlines()
    (first / "results.jsonl").write_text("\n".join(x for x in rows if '"c": 2,' in x) + "\n")
    with pytest.raises(KvtopError, match="share no arm and load"):
        ComparedArticle(first, second)


def test_the_command_takes_what_fits(tmp_path):
    with pytest.raises(KvtopError, match="--compare takes two runs, 1 given"):
        render(["a"], compare=True)
    with pytest.raises(KvtopError, match="one run at a time, 2 given; two go with --compare"):
        render(["a", "b"])
    with pytest.raises(KvtopError, match="--declare goes with --compare"):
        render(["a"], declared=["machine"])
    with pytest.raises(KvtopError, match="published:glm53 is no run of ours"):
        render(["published:glm53", "a"], compare=True)
    with pytest.raises(KvtopError, match="holds no results.jsonl, name a run folder"):
        render([str(tmp_path)])

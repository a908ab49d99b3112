"""`10_deploy` and `20_sweep` against an engine with a script: records say what was played."""

import json
import re

import pytest
import yaml
from checkout import execute, make

from kvtop_lib import paths
from kvtop_lib.params import load_profile
from kvtop_lib.store import Run

pytestmark = pytest.mark.notebook


@pytest.fixture
def root(tmp_path, monkeypatch):
    return make(tmp_path, monkeypatch)


def deploy(root, arm: str) -> tuple[dict, list[str]]:
    folder = root / "run" / arm / "deploy"
    shown = execute("10_deploy", folder, profile="fake", arm=arm, folder=str(folder))
    return json.loads((folder / "deployment.json").read_text()), shown


def test_deployments_are_recorded_and_compared_with_the_baseline(root):
    record, shown = deploy(root, "baseline")
    assert record["lossless"] == {
        "role": "reference", "prompts": 6, "c": 8, "tokens": 48, "matched": None, "mismatches": [],
    }  # fmt: skip
    assert record["kv_tokens"] == 4096 and record["requested"]["dtype"] == "float32"
    assert record["startup_s"] > 0 and record["memory_bytes"] > 1_000_000
    start = r"baseline: starting the server \(about 30 s\)\nbaseline: ready after \d+ s, 4096 KV"
    assert re.search(start, "".join(shown))

    record, shown = deploy(root, "mtp_w2")
    assert record["lossless"]["matched"] == 6 and record["lossless"]["mismatches"] == []
    assert record["width_tokens"] == 2
    assert any("all equal the baseline's" in text for text in shown)

    record, shown = deploy(root, "other")  # its prompt "ask 3." ends in another token
    assert record["lossless"]["matched"] == 5
    (found,) = record["lossless"]["mismatches"]
    assert (found["prompt"], found["position"]) == (3, 7)
    assert found["arm"] == found["baseline"] + 1000
    assert any("1 DIFFER from the baseline's" in text for text in shown)


def sweep(root, arm: str) -> tuple[Run, list[str]]:
    run = root / "run"
    where = {"profile": "fake", "arm": arm, "block": 1, "run": str(run), "key": "k1"}
    return Run(run), execute("20_sweep", run / arm / "b1", **where)


def test_a_sweep_records_every_point(root):
    records, shown = sweep(root, "mtp_w2")
    points = records.results().set_index("c")
    assert list(points["status"]) == ["ok", "ok"], list(points["reason"])
    # a request is 1 + 2 x 2 tokens, every draft accepted, the chunks at least 150 ms apart
    assert list(points["accept_len"]) == [2.0, 2.0]
    assert (points["iteration_s_p50"] >= 0.149).all() and (points["tpot_s_p50"] >= 0.0745).all()
    assert points.loc[2, "output_tok_s"] > points.loc[1, "output_tok_s"]
    assert list(points["window_s"]) == pytest.approx([2.6, 3.1])  # at 2 its own
    line = records.lines()[0]
    assert (line["arm"], line["block"], line["load"], line["attempt"]) == ("mtp_w2", 1, "c1", 1)
    assert line["key"] == "k1" and line["seed"] == load_profile("fake").seed
    # no prompt is used twice in a block
    rows = records.results().to_dict("records")
    asked = [session for row in rows for session in records.requests(row)["session"]]
    assert len(asked) == len(set(asked)) > 10
    assert records.deployment("mtp_w2", 1)["arm"] == "mtp_w2"
    assert any("c2: ok" in text for text in shown)


def test_a_point_that_fails_has_no_number_and_the_sweep_goes_on(root):
    profile = paths.params_dir() / "profiles" / "fake.yaml"
    content = yaml.safe_load(profile.read_text()) | {"loads": [1, 2, 3]}
    profile.write_text(yaml.safe_dump(content))
    records, shown = sweep(root, "dies")
    points = records.results().set_index("c")
    assert points["status"].to_dict() == {1: "ok", 2: "failed", 3: "failed"}
    assert "the server has ended" in points.loc[3, "reason"]
    assert points.loc[[2, 3], "output_tok_s"].isna().all()
    lines = {line["c"]: line for line in records.lines()}
    assert not {"output_tok_s", "ttft_s", "accept_len"} & (set(lines[2]) | set(lines[3]))
    assert any("c2: failed" in text for text in shown)

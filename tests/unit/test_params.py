"""Parameter files: every committed one loads, and a faulty one is refused in one sentence."""

from __future__ import annotations

import pytest

from kvtop_lib import paths
from kvtop_lib.params import (
    Arm,
    Model,
    Profile,
    Workload,
    list_names,
    load_arm,
    load_model,
    load_profile,
    load_workload,
)
from kvtop_lib.terms import KvtopError

ARM = "title: An arm\ndraft: {method: mtp, width: 3}\n"


@pytest.fixture
def params(tmp_path, monkeypatch):
    """An empty params folder; returns a function that writes one file into it."""
    monkeypatch.setenv("KVTOP_ROOT", str(tmp_path))

    def write(kind: str, name: str, text: str) -> None:
        folder = tmp_path / "params" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)

    return write


@pytest.mark.parametrize(
    ("kind", "load"),
    [(Arm, load_arm), (Model, load_model), (Workload, load_workload), (Profile, load_profile)],
)
def test_every_committed_file_loads_under_its_own_name(kind, load):
    names = list_names(kind)
    assert names, f"no {kind.__name__} files"
    assert [load(n).id for n in names] == names


def test_the_default_profile_asks_for_the_loads_of_the_mission():
    profile = load_profile("reproduce")
    assert profile.loads == [1, 2, 4, 8, 16, 32]
    assert profile.arms == ["baseline", "mtp_w2", "mtp", "mtp_ngram", "baseline_aa"]
    assert len(profile.loads_of("baseline_aa")) == 2
    assert profile.model == "smollm2-mtp"


def test_depth_is_one_less_than_width(params):
    params("arms", "three", ARM)
    assert load_arm("three").draft.depth == 2


def test_model_paths_resolve_cache_and_package_data(params, monkeypatch, tmp_path):
    monkeypatch.setenv("KVTOP_CACHE", str(tmp_path / "cache"))
    params(
        "models",
        "m",
        "title: M\ncheckpoint: cache:trunk\ncontext_tokens: 2048\n"
        "mtp: {algorithm: EAGLE, draft: 'embedded:layer', token_map: map.pt}\n",
    )
    model = load_model("m")
    assert model.path == tmp_path / "cache" / "trunk"
    assert model.mtp.draft_path == paths.embedded_dir() / "layer"
    assert model.mtp.token_map_path == paths.embedded_dir() / "layer" / "map.pt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ARM + "server_arg: {}\n", "unknown key 'server_arg', did you mean 'server_args'?"),
        ("draft: {method: none}\n", "title: Field required"),
        ("title: x\ndraft: {method: none, width: 2}\n", "draft.width must be 1 without drafting"),
        ("title: x\ndraft: {method: ngram, width: 1}\n", "at least 2 with it"),
        (ARM + "server_args: {port: 80}\n", "server_args may not set port"),
        (ARM + "server_args: {speculative-num-steps: 3}\n", "draft: and the launcher decide"),
        (ARM + "server_args: {--port: 3}\n", "String should match pattern"),
        ('title: "a\\eb"\n', "title: String should match pattern"),
        ("title: x\n1: 2\n", "unknown key 1"),
        ("title: x\nid: other\n", "the file's name is the id"),
        ("title: [\n", "is not valid YAML"),
        ("- a\n- b\n", "must hold keys and values, it holds list"),
    ],
)
def test_a_faulty_arm_is_refused_with_the_reason(params, text, said):
    params("arms", "bad", text)
    with pytest.raises(KvtopError) as e:
        load_arm("bad")
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    assert "bad.yaml" in str(e.value)


def test_a_missing_name_suggests_the_closest(params):
    params("arms", "baseline", "title: Baseline\n")
    with pytest.raises(KvtopError, match="did you mean 'baseline'"):
        load_arm("basline")


def _profile(params, arms, loads="[1, 2]", more=""):
    params("arms", "baseline", "title: Baseline\n")
    params("arms", "mtp_w3", ARM)
    params("models", "plain", "title: Plain\ncheckpoint: /x\ncontext_tokens: 2048\n")
    params("workloads", "w", "title: W\ntrace: builtin:agent\nmax_output_tokens: 10\n")
    params(
        "profiles",
        "p",
        f"title: P\nmodel: plain\nworkload: w\narms: {arms}\nloads: {loads}\n"
        "burn_in_s: 1\nwarmup_s: 2\nwindow_s: 30\ndrain_s: 4\ntimeout_s: 9\n" + more,
    )
    return load_profile("p")


def test_a_load_may_have_a_window_of_its_own(params):
    loads, more = "[1, 8, r0.50]", "windows: {1: 40, r0.50: 60}\n"
    profile = _profile(params, "[baseline]", loads, more=more)
    assert [profile.window_of(load) for load in profile.loads] == [40, 30, 60]
    assert profile.windows == {"c1": 40, "r0.50": 60}
    for more, said in (
        ("windows: {4: 40}\n", "windows: c4 is not one of the loads, c1"),
        ("windows: {1: 0}\n", "windows: c1 must be seconds above 0, not 0"),
        ("windows: {x: 5}\n", "'x' is no load"),
        ("windows: 40\n", "windows"),
    ):
        with pytest.raises(KvtopError) as e:
            _profile(params, "[baseline]", "[1]", more=more)
        assert said in str(e.value)


@pytest.mark.parametrize(
    ("arms", "loads", "said"),
    [
        ("[baseline, mtp_w3]", "[1]", "model 'plain' has no MTP layer"),
        ("[mtp_w3]", "[1]", "arms must contain 'baseline'"),
        ("[baseline, baseline]", "[1]", "arms names one thing twice"),
        ("[baseline]", "[1, 1]", "loads names one thing twice"),
        ("[baseline]", "[0]", "loads.0"),
        ("[baseline, nothing]", "[1]", "no arm 'nothing'"),
    ],
)
def test_a_profile_is_checked_before_anything_starts(params, arms, loads, said):
    with pytest.raises(KvtopError) as e:
        _profile(params, arms, loads)
    assert said in str(e.value)


def test_latency_targets_are_limits_of_known_latencies(params):
    assert _profile(params, "[baseline]").targets == {}
    profile = _profile(params, "[baseline]", more="targets: {ttft_s: 0.5, tpot_s: 0.1}\n")
    assert profile.targets == {"ttft_s": 0.5, "tpot_s": 0.1}
    known = "targets: no latency target on 'ttft'; known: ttft_s, tpot_s, e2e_s"
    with pytest.raises(KvtopError, match=known):
        _profile(params, "[baseline]", more="targets: {ttft: 1}\n")
    with pytest.raises(KvtopError, match="the limit of e2e_s must be seconds above 0, not 0"):
        _profile(params, "[baseline]", more="targets: {e2e_s: 0}\n")

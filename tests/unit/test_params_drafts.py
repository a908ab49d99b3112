"""Drafting arms with several widths: what their files may say, and what the server is told."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvtop_lib.engine.command import server_command
from kvtop_lib.params import Arm, load_arm, load_model
from kvtop_lib.params.arm import Draft

ISOLATION = ("mtp_width_on", "mtp_width_off")


def arm(**draft) -> Arm:
    return Arm(id="a", title="A", draft=draft)


def command(name):
    return server_command(load_model("tiny-glm"), load_arm(name), 8000)


def test_widths_imply_the_largest_width_and_the_goodput_policy():
    draft = arm(method="mtp", widths=[4, 1, 2]).draft
    assert (draft.width, draft.depth, draft.widths, draft.policy) == (4, 3, (1, 2, 4), "goodput")


def test_a_mixed_source_with_one_width_is_fixed_there():
    draft = arm(method="mtp_ngram", width=4).draft
    assert (draft.width, draft.widths, draft.policy) == (4, (4,), "fixed:4")


@pytest.mark.parametrize(
    "draft",
    [
        {"method": "mtp", "width": 2},
        {"method": "mtp", "widths": [1, 2]},
        {"method": "mtp_ngram", "width": 4, "min_match": 5},
        {"method": "mtp", "widths": [1, 4], "policy": "table", "table": {1: 4, 8: 1}},
    ],
)
def test_an_arm_survives_its_own_record(draft):
    first = arm(**draft).draft
    assert Draft(**json.loads(first.model_dump_json())) == first


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ({"method": "mtp", "width": 2, "widths": [1, 4]}, "give width or widths"),
        ({"method": "mtp", "width": 2, "policy": "goodput"}, "need widths"),
        ({"method": "ngram", "widths": [1, 2]}, "need method mtp or mtp_ngram"),
        ({"method": "mtp", "widths": [1]}, "at least 2 with it"),
        ({"method": "mtp", "widths": [1, 2], "policy": "fixed:4"}, "must name one of the widths"),
        ({"method": "mtp", "widths": [1, 2], "policy": "best"}, "draft.policy must be"),
        ({"method": "mtp", "widths": [1, 2], "policy": "table"}, "draft.table goes with"),
        ({"method": "mtp", "widths": [1, 2], "table": {1: 2}}, "draft.table goes with"),
        (
            {"method": "mtp", "widths": [1, 2], "policy": "table", "table": {1: 4}},
            "names width 4",
        ),
        ({"method": "mtp_ngram", "widths": [1, 2], "policy": "sglang"}, "knows no n-grams"),
        ({"method": "mtp", "widths": [1, 2], "min_matches": 3}, "Extra inputs"),
        ({"method": "mtp", "widths": [1, 2], "simulated_accept_len": 1}, "and one width"),
        ({"method": "ngram", "width": 2, "simulated_accept_len": 1}, "needs method mtp"),
        ({"method": "mtp", "width": 2, "simulated_accept_len": 2.5}, "more than the width of 2"),
        ({"method": "mtp", "width": 2, "simulated_accept_len": 0.5}, "greater than or equal to 1"),
        ({"method": "mtp", "width": 2, "simulated_accept_len": 1}, "must say 'simulated'"),
    ],
)
def test_contradictions_are_refused(draft, said):
    with pytest.raises(ValueError, match=said):
        arm(**draft)


def test_the_shipped_arms_tell_the_plug_in_what_to_do():
    told = {
        name: json.loads(command(name).env["KVTOP_DRAFT"])
        for name in ("mtp", "mtp_ngram", "mtp_controller", "mtp_adaptive", *ISOLATION)
    }
    mtp = {"sources": ["mtp"]}
    assert told == {
        "mtp": {**mtp, "widths": [1, 2], "policy": "goodput"},
        "mtp_ngram": {
            "sources": ["mtp", "ngram"],
            "widths": [1, 2, 4],
            "policy": "goodput",
            "min_match": 3,
        },
        "mtp_controller": {**mtp, "widths": [1, 2, 4], "policy": "goodput"},
        "mtp_adaptive": {**mtp, "widths": [1, 2, 4], "policy": "sglang"},
        "mtp_width_on": {**mtp, "widths": [1, 2], "policy": "fixed:2"},
        "mtp_width_off": {**mtp, "widths": [1, 2], "policy": "fixed:1"},
    }


@pytest.mark.parametrize("name", ["baseline", "mtp_w2", "mtp_w4", "ngram"])
def test_arms_of_one_width_need_no_plug_in_for_it(name):
    asked = command(name)
    assert "KVTOP_DRAFT" not in asked.env and "speculative-adaptive" not in asked.args


def test_the_isolation_pair_differs_in_the_width_alone():
    on, off = map(command, ISOLATION)
    assert on.args == off.args and on.args["speculative-num-draft-tokens"] == 2
    differing = {k for k in on.env.keys() | off.env.keys() if on.env.get(k) != off.env.get(k)}
    assert differing == {"KVTOP_DRAFT"}


def test_the_log_lies_beside_the_server_s(tmp_path):
    asked = server_command(load_model("tiny-glm"), load_arm("mtp"), 8000, tmp_path / "i.jsonl")
    assert asked.env["KVTOP_DRAFT_LOG"] == str(tmp_path / "drafts.jsonl")
    assert "KVTOP_DRAFT_LOG" not in command("mtp_w2").env


@pytest.mark.parametrize(("name", "length"), [("none", "1"), ("all", "2")])
def test_simulated_acceptance_is_the_drafting_arm_with_sglang_s_own_variables(name, length):
    """The names are SGLang's; an engine that renamed them would verify for real."""
    real, made_up = command("mtp_w2"), command(f"mtp_w2_accept_{name}")
    assert made_up.args == real.args | {"port": 8000}
    assert dict(made_up.env.items() - real.env.items()) == {
        "SGLANG_SIMULATE_ACC_LEN": length,
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
    assert not load_arm(f"mtp_w2_accept_{name}").lossless and load_arm("mtp_w2").lossless
    environ = find_spec("sglang").submodule_search_locations[0] + "/srt/environ.py"
    known = Path(environ).read_text(encoding="utf-8")
    assert all(f"    {k} = Env" in known for k in made_up.env if k.startswith("SGLANG_SIMULATE"))


def test_the_reserve_arm_differs_from_its_reference_in_the_widest_draft_alone():
    reserve, off = command("mtp_reserve"), command("mtp_width_off")
    told = [json.loads(x.env["KVTOP_DRAFT"]) for x in (reserve, off)]
    assert [t.pop("widths") for t in told] == [[1, 32], [1, 2]]
    assert told[0] == told[1] == {"sources": ["mtp"], "policy": "fixed:1"}
    changed = dict(reserve.args.items() - off.args.items())
    assert changed == {"speculative-num-steps": 31, "speculative-num-draft-tokens": 32}


def test_the_cap_is_left_to_sglang_or_lifted():
    flag = "max-running-requests"
    assert command("mtp_w2").args[flag] == 48 and command("mtp_w2_lifted").args[flag] == 4096
    for name in ("mtp_w2_shipped", "baseline_shipped"):
        assert flag not in command(name).args
    lifted = {k: v for k, v in command("mtp_w2_lifted").args.items() if k != flag}
    assert lifted == command("mtp_w2_shipped").args

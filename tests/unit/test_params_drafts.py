"""Drafting arms with several widths: what their files may say, and what the server is told."""

import json

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

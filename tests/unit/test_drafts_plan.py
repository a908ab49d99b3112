"""Plans of iterations: who drafts, how wide, what is counted; and what the variable may say."""

import array
import gc
import json
from types import SimpleNamespace

import pytest

from kvtop_lib.sglang_plugin.drafts import suffix
from kvtop_lib.sglang_plugin.drafts.config import DraftConfig, parse
from kvtop_lib.sglang_plugin.drafts.counts import DraftLog
from kvtop_lib.sglang_plugin.drafts.director import Director
from kvtop_lib.sglang_plugin.drafts.lookup import Lookup
from kvtop_lib.sglang_plugin.drafts.policies import Table, make


class Request(SimpleNamespace):
    """What the look-up reads of an engine's request."""

    __hash__ = object.__hash__

    def __init__(self, prompt, output=(), most=64):
        super().__init__(
            origin_input_ids_unpadded=array.array("q", prompt),
            output_ids=array.array("q", output),
            sampling_params=SimpleNamespace(max_new_tokens=most),
        )


REPEATS = [1, 2, 3, 4, 5, 1, 2, 3]
FRESH = [9, 8, 7, 6, 5, 4, 3, 2]


def director(widths=(1, 2, 4), policy="fixed:4", ngram=True, **more):
    return Director(DraftConfig(tuple(widths), policy, ngram, 2, more.pop("table", {})), **more)


def test_matched_rows_draft_from_their_text():
    plan = director().plan([Request(REPEATS), Request(FRESH)])
    assert (plan.width, plan.drafts) == (4, ((4, 5, 1), ()))
    assert (plan.matched, plan.all_matched) == ([0], False)
    assert plan.sources == ["ngram", "mtp"]


def test_no_mtp_when_every_row_matches():
    guide = director()
    assert guide.plan([Request(REPEATS), Request(REPEATS[1:], [4])]).all_matched
    assert guide.counts.mtp_skipped == 1


def test_width_1_drafts_nothing():
    plan = director(policy="fixed:1").plan([Request(REPEATS), Request(FRESH)])
    assert (plan.width, plan.drafts, plan.sources) == (1, ((), ()), ["none", "none"])
    assert not plan.matched


def test_the_index_follows_the_output():
    guide, request = director(policy="fixed:2"), Request(FRESH, [9])
    assert guide.plan([request]).drafts == ((),)
    request.output_ids.extend([8])
    assert guide.plan([request]).drafts == ((7,),)
    request.output_ids.extend([7, 6])
    assert guide.plan([request]).drafts == ((5,),)


def test_counts_by_source_and_position():
    guide = director()
    guide.plan([Request(REPEATS), Request(FRESH)])
    guide.verified([2, 1])
    assert guide.counts.proposed == {"ngram": [1, 1, 1], "mtp": [1, 1, 1]}
    assert guide.counts.accepted == {"ngram": [1, 1, 0], "mtp": [1, 0, 0]}
    assert guide.counts.iterations == {4: 1} and guide.counts.lookups == 2


def test_results_may_come_one_iteration_late():
    guide, request = director(table={1: 2, 2: 4}, policy="table", ngram=False), Request(FRESH)
    guide.plan([request, request])
    guide.plan([request])  # before the first result
    guide.verified([3, 0])
    guide.verified([1])
    assert guide.counts.proposed["mtp"] == [3, 2, 2]
    assert guide.counts.accepted["mtp"] == [2, 1, 1]


def test_results_that_fit_no_plan_teach_nothing():
    guide = director()
    guide.verified([1, 1])
    guide.plan([Request(FRESH)])
    guide.verified([1, 1])
    guide.verified([1])
    assert guide.counts.proposed["mtp"] == [0, 0, 0]


def test_an_iteration_is_timed_until_the_next_one_unless_interrupted():
    now = iter([0.0, 1.0, 1.5, 2.0, 9.0])
    guide = director((1, 2), "goodput", ngram=False, clock=lambda: next(now))
    seen = []
    guide.policy.timed = lambda *what: seen.append(what)
    one = [Request(FRESH)]
    for step in range(5):
        if step == 4:
            guide.interrupted()
        guide.plan(one)
    assert [seconds for _, _, seconds in seen] == [1.0, 0.5, 0.5]


def test_a_long_prompt_is_read_in_pieces():
    class Small(suffix.PythonIndex):
        TOKENS_PER_ITERATION = 5

    lookup, request = Lookup(2, Small), Request(REPEATS * 2)
    found = [lookup.propose([request, Request(REPEATS)], 2) for _ in range(4)]
    assert [bool(first) for first, _ in found] == [False, False, False, True]
    assert found[3][0] == [1, 2]  # after the first eight tokens, the longest match


def test_an_index_is_made_for_the_whole_answer():
    made = []

    class Told(suffix.PythonIndex):
        def __init__(self, min_match, window=suffix.WINDOW_TOKENS, expected_tokens=0):
            super().__init__(min_match, window, expected_tokens)
            made.append(expected_tokens)

    Lookup(2, Told).propose([Request(REPEATS, [4, 5], most=100), Request(FRESH, most=7)], 2)
    assert made == [len(REPEATS) + 100, len(FRESH) + 7]


def test_no_more_indices_are_made_at_once_than_can_be_read():
    class Small(suffix.PythonIndex):
        TOKENS_PER_ITERATION = 10

    lookup, batch = Lookup(2, Small), [Request(REPEATS) for _ in range(4)]
    made = []
    for _ in range(4):
        found = lookup.propose(batch, 1)
        made.append((len(lookup), sum(map(bool, found))))
    assert made == [(2, 1), (3, 2), (4, 3), (4, 4)]


def test_state_ends_with_its_request():
    lookup, request = Lookup(2, suffix.PythonIndex), Request(REPEATS)
    lookup.propose([request], 2)
    assert len(lookup) == 1
    del request
    gc.collect()
    assert len(lookup) == 0


def test_a_shortened_request_starts_anew():
    lookup, request = Lookup(2, suffix.PythonIndex), Request(REPEATS, [4, 5])
    assert lookup.propose([request], 1) == [[1]]
    del request.output_ids[:]
    assert lookup.propose([request], 1) == [[4]]


def test_a_table_takes_the_last_line_at_or_below():
    table = Table({2: 4, 8: 1}, "table")
    assert [table.choose(b, 0) for b in (1, 2, 7, 8, 40)] == [4, 4, 4, 1, 1]
    assert make(DraftConfig((1, 2), "fixed:2")).choose(9, 0) == 2


def test_every_change_of_width_is_logged(tmp_path):
    file = tmp_path / "logs" / "drafts.jsonl"
    log = DraftLog(str(file))
    guide = director(policy="table", table={1: 4, 2: 1}, ngram=False, log=log)
    for batch in (1, 1, 2, 1):
        guide.plan([Request(FRESH)] * batch)
    log._file.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changes = [x for x in lines if x["event"] == "width"]
    assert [(x["from"], x["to"], x["batch"], x["why"]) for x in changes] == [
        (None, 4, 1, "table"),
        (4, 1, 2, "table"),
        (1, 4, 1, "table"),
    ]
    assert any(x["event"] == "counts" for x in lines)


def test_a_full_configuration_is_read():
    text = '{"sources": ["mtp", "ngram"], "widths": [4, 1, 2], "policy": "table", "min_match": 5,'
    config = parse(text + ' "table": {"8": 1, "1": 4}}')
    assert config == DraftConfig((1, 2, 4), "table", True, 5, {1: 4, 8: 1})
    assert config.adaptive_config() == {"1": {"candidate_steps": [0, 1, 3]}}
    assert parse('{"widths": [1, 2]}').policy == "goodput"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"width": 2}', "unknown key 'width'"),
        ('{"widths": []}', "widths must be"),
        ('{"widths": [0, 2]}', "widths must be"),
        ('{"widths": [true]}', "widths must be"),
        ('{"widths": [2], "sources": ["ngram"]}', "sources must be"),
        ('{"widths": [2], "policy": "fixed:3"}', "must name one of the widths"),
        ('{"widths": [2], "policy": "best"}', "policy must be one of"),
        ('{"widths": [2], "policy": "table"}', "needs a table"),
        ('{"widths": [2], "table": {"1": 2}}', "other policies take none"),
        ('{"widths": [2], "policy": "table", "table": {"1": 3}}', "table must map"),
        ('{"widths": [2], "min_match": 0}', "min_match must be"),
        ('{"widths": [2], "sources": ["mtp", "ngram"], "policy": "sglang"}', "knows no n-grams"),
    ],
)
def test_a_faulty_variable_is_refused_with_the_reason(text, said):
    with pytest.raises(ValueError, match=said):
        parse(text)

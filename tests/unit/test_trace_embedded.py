"""The committed traces keep what the workload promises; their card shows their real figures."""

from __future__ import annotations

import hashlib
from os.path import commonprefix

import pytest

from kvtop_lib.paths import embedded_dir
from kvtop_lib.trace import load_trace, trace_path
from kvtop_lib.trace.builtin import BUILTIN
from kvtop_lib.trace.card import card, facts
from kvtop_lib.trace.loops import ends_in_loop

MIB = 1 << 20


@pytest.fixture(scope="module", params=list(BUILTIN))
def trace(request):
    return load_trace(request.param)


def test_no_prompt_is_used_twice(trace):
    assert facts(trace)["distinct_prompts"] == trace.requests


def test_sessions_share_the_system_prompt_and_little_else(trace):
    openings = sorted(s.request_messages(0)[1]["content"] for s in trace.sessions)
    shared = [len(commonprefix(pair)) for pair in zip(openings, openings[1:], strict=False)]
    assert max(shared) < 160  # characters: a task's words and the folder of its file
    assert len({s.request_messages(0)[0]["content"] for s in trace.sessions}) == 1


def test_each_session_grows_turn_by_turn_within_its_limits(trace):
    cap = trace.recorded_with["max_output_tokens"]
    for session in trace.sessions:
        assert session.total_tokens <= trace.recorded_with["session_tokens"] <= 800
        prompts = [t.prompt_tokens for t in session.turns]
        assert prompts == sorted(set(prompts))
        for turn in session.turns:
            assert 1 <= turn.output_tokens <= cap
            assert turn.finish_reason == "stop" or turn.output_tokens == cap


def test_loop_flags_are_those_of_the_rule(trace):
    turns = [turn for session in trace.sessions for turn in session.turns]
    assert [turn.looped for turn in turns] == [ends_in_loop(turn.output) for turn in turns]


def test_the_agent_trace_is_large_varied_and_loops_rarely():
    trace = load_trace("builtin:agent")
    figures = facts(trace)
    assert figures["sessions"] >= 250
    assert figures["distinct_tasks"] >= 60
    assert figures["loop_share"] <= 0.10
    assert figures["stop_share"] >= 0.5
    assert trace.recorded_with["engine"].get("speculative_algorithm") is None
    assert trace_path("builtin:agent").stat().st_size < 2 * MIB


@pytest.mark.parametrize("name", list(BUILTIN))
def test_the_card_and_the_fingerprint_are_those_of_the_file(name):
    text = (embedded_dir() / "agent" / "README.md").read_text(encoding="utf-8")
    assert text.split(f"<!-- {name} -->")[1].strip() == card(load_trace(name))
    digest = hashlib.sha256(trace_path(name).read_bytes()).hexdigest()
    assert digest == load_trace(name).fingerprint
    assert digest in text

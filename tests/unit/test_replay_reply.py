"""One response, one status; tokens are the server's."""

from __future__ import annotations

import hashlib
import json

import pytest

from kvtop_lib.replay import event, reader
from kvtop_lib.replay.reply import Raw, parse


def _raw(*bodies, failure=None, done=True) -> Raw:
    """A response whose event i was read at second i."""
    lines = [b"data: " + (b if isinstance(b, bytes) else json.dumps(b).encode()) for b in bodies]
    lines += [b"data: [DONE]"] * done
    return Raw(
        sent_s=-1.0,
        stamps=[float(i) for i in range(len(lines))],
        buffers=[line + b"\n\n" for line in lines],
        failure=failure,
    )


def _say(content=None, total=None, finish=None, **more) -> dict:
    body = {"id": "r1", "choices": [{"delta": {"content": content}, "finish_reason": finish}]}
    usage = {"prompt_tokens": 20, "completion_tokens": total} if total is not None else None
    return {**body, "usage": usage, **more}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ROLE, STOP = _say(""), _say(finish="stop")


def test_tokens_are_the_servers_count_not_the_number_of_chunks():
    reply = parse(_raw(ROLE, _say("a", 3), _say("b", 7), STOP))
    assert reply.chunks == [(1.0, 3), (2.0, 7)]
    assert (reply.output_tokens, reply.prompt_tokens, reply.response_id) == (7, 20, "r1")
    assert (reply.first_token_s, reply.last_token_s) == (1.0, 2.0)
    assert (reply.status, reply.finish_reason) == ("ok", "stop")
    assert reply.text_sha256 == _sha("ab")


def test_tokens_without_text_count_when_the_last_usage_tells_of_them():
    last = {"id": "r1", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}}
    reply = parse(_raw(ROLE, _say("a", 3), STOP, last))
    assert reply.chunks == [(1.0, 3), (3.0, 4)]
    assert reply.last_token_s == 3.0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_output_and_its_first_token_is_the_first_token(name):
    think = {"id": "r1", "choices": [{"delta": {name: "hm", "content": None}}]}
    usage = {"prompt_tokens": 20, "completion_tokens": 2}
    reply = parse(_raw(ROLE, {**think, "usage": usage}, _say("so", 3), STOP))
    assert (reply.first_token_s, reply.first_answer_s) == (1.0, 2.0)
    assert reply.text_sha256 == _sha("hmso")


def test_a_tool_call_is_an_answer():
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}
    body = {"id": "r1", "choices": [{"delta": call}], "usage": {"completion_tokens": 4}}
    reply = parse(_raw(ROLE, body, _say(finish="tool_calls")))
    assert (reply.status, reply.first_answer_s, reply.chunks) == ("ok", 1.0, [(1.0, 4)])


def test_a_plain_completion_has_its_text_in_the_choice():
    said = [{"id": "c", "choices": [{"text": t}], "usage": {"completion_tokens": n}}
            for t, n in (("a", 2), ("b", 3))]  # fmt: skip
    end = {"id": "c", "choices": [{"text": "", "finish_reason": "length"}]}
    reply = parse(_raw(*said, end))
    assert (reply.status, reply.finish_reason) == ("ok", "length")
    assert reply.chunks == [(0.0, 2), (1.0, 3)] and reply.text_sha256 == _sha("ab")


def test_chunks_without_a_count_are_noted_never_guessed():
    reply = parse(_raw(ROLE, _say("a"), _say("b"), STOP))
    assert (reply.uncounted, reply.output_tokens) == (2, 0)
    assert reply.chunks == [(1.0, None), (2.0, None)]
    assert (reply.first_token_s, reply.last_token_s) == (1.0, 2.0)


def test_a_count_that_comes_only_at_the_end_tells_how_many_not_when():
    usage = {"prompt_tokens": 20, "completion_tokens": 9}
    reply = parse(
        _raw(ROLE, _say("a"), _say("b"), STOP, {"id": "r1", "choices": [], "usage": usage})
    )
    assert (reply.output_tokens, reply.uncounted, reply.prompt_tokens) == (9, 2, 20)
    assert reply.chunks == [(1.0, None), (2.0, None)] and reply.last_token_s == 2.0


def test_vllm_counts_from_the_role_chunk_on():
    reply = parse(_raw(_say("", 0), _say("a", 1), _say("b", 3), _say("", 3, finish="stop")))
    assert (reply.status, reply.uncounted, reply.chunks) == ("ok", 0, [(1.0, 1), (2.0, 3)])


def test_llama_cpp_counts_in_its_timings():
    def timed(text, n, **more):
        return _say(text, timings={"prompt_n": 5, "cache_n": 15, "predicted_n": n}, **more)

    reply = parse(_raw(ROLE, timed("a", 1), timed("b", 2), timed(None, 2, finish="stop")))
    assert (reply.status, reply.chunks) == ("ok", [(1.0, 1), (2.0, 2)])
    assert (reply.prompt_tokens, reply.cached_tokens) == (20, 15)
    at_end = parse(_raw(ROLE, _say("a"), _say("b"), timed(None, 2, finish="stop")))
    assert (at_end.output_tokens, at_end.uncounted) == (2, 2)


def test_numbers_and_characters_that_other_clients_accept_are_read():
    odd = b'{"id":7,"choices":[{"delta":{"content":"\\ud83d"}}],"usage":{"completion_tokens":2.0}}'
    reply = parse(_raw(odd, STOP))
    assert (reply.status, reply.output_tokens, reply.response_id) == ("ok", 2, "7")


def test_counters_of_drafting_and_cached_tokens():
    spec = {
        "spec_verify_ct": 10,
        "spec_num_proposed_drafts": 10,
        "spec_correct_drafts_histogram": [3, 7],
    }
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 15},
    }
    tail = {"id": "r1", "choices": [], "sglext": {"spec_tokens_details": spec}}
    reply = parse(_raw(_say("a", 18), STOP, tail, {"id": "r1", "choices": [], "usage": usage}))
    assert (reply.verify_steps, reply.accepted_hist, reply.proposed_drafts) == (10, [3, 7], 10)
    assert reply.cached_tokens == 15


ERROR = {"error": {"message": "out of memory"}}
RESET = ("truncated", "the stream was cut: reset")


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (_raw(_say("a", 1), ERROR), "stream_error", "out of memory"),
        (_raw(ERROR), "stream_error", "out of memory"),
        (_raw({"object": "error", "message": "bad"}), "stream_error", "bad"),
        (_raw(_say("a", 1), b"{nonsense"), "stream_error", "not JSON"),
        (_raw(_say("a", 1), b"[1]"), "stream_error", "not an object"),
        (_raw(_say("a", 1), b'{"choices": 3}'), "stream_error", "not an event of a completion"),
        (Raw(0.0, [1.0], [b'{"choices": []}']), "stream_error", "not an event stream"),
        (Raw(0.0, [1.0], [b"<html>"]), "stream_error", "not an event stream"),
        (_raw(_say("a", 1), _say(finish="abort")), "stream_error", "aborted"),
        (_raw(_say("a", 1), STOP, done=False), "truncated", "end mark"),
        (_raw(_say("a", 1)), "truncated", "final chunk"),
        (_raw(done=False), "truncated", "final chunk"),
        (_raw(_say("a", 1), done=False, failure=RESET), "truncated", "reset"),
        (_raw(_say("a", 1), done=False, failure=("timeout", "silent")), "timeout", "silent"),
        (_raw(_say("a", 1), done=False, failure=("cancelled", "us")), "cancelled", "us"),
        (_raw(done=False, failure=("http_error", "HTTP 503")), "http_error", "503"),
        (_raw(_say("a", 1), ERROR, done=False, failure=RESET), "stream_error", "out of memory"),
    ],
)
def test_every_bad_end_has_its_own_status(raw, status, words):
    reply = parse(raw)
    assert reply.status == status
    assert words in reply.error and reply.failure


def test_a_complete_stream_stays_ok_when_the_connection_dies_afterwards():
    assert parse(_raw(_say("a", 1), STOP, failure=RESET)).status == "ok"


def test_tokens_before_a_fault_stay_counted():
    reply = parse(_raw(_say("a", 2), _say("b", 5), ERROR))
    assert (reply.status, reply.output_tokens) == ("stream_error", 5)


_SAID = '{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":%s}}'
_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "said",
    [
        _SAID % 3_000_000_000, _SAID % 10**30, _SAID % -5, _SAID % "1.5", _SAID % "true",
        '{"usage":{"prompt_tokens":-7}}', '{"usage":{"prompt_tokens":1099511627776}}',
        '{"usage":{"prompt_tokens_details":{"cached_tokens":-1}}}',
        '{"timings":{"predicted_n":99999999999}}',
        '{"error":' + _DEEP + "}", '{"id":' + _DEEP + "}",
        '{"sglext":{"spec_tokens_details":{"spec_verify_ct":"x"}}}',
        '{"sglext":{"spec_tokens_details":{"spec_verify_ct":1e30}}}',
        '{"sglext":{"spec_tokens_details":{"spec_correct_drafts_histogram":5}}}',
        '{"sglext":{"spec_tokens_details":{"spec_correct_drafts_histogram":["a"]}}}',
    ],
    ids=lambda said: said[:60],
)  # fmt: skip
def test_counts_that_no_server_can_mean_end_their_request_alone(said):
    reply = parse(_raw((_SAID % 2).encode(), said.encode()))
    assert (reply.status, reply.failure, reply.output_tokens) == ("stream_error", "garbage", 2)
    assert "\n" not in reply.error and len(reply.error) < 1000


def test_a_line_without_an_end_ends_its_request(monkeypatch):
    monkeypatch.setattr(reader, "LINE_LIMIT", 100)
    endless = Raw(sent_s=0.0, stamps=[1.0, 2.0, 3.0], buffers=[b"data: " + b"x" * 60] * 3)
    reply = parse(endless)
    assert (reply.status, reply.failure) == ("stream_error", "garbage")
    assert reply.error == "a line of more than 100 bytes"


@pytest.mark.parametrize(
    "said",
    [
        '{"id":"\\ud800","choices":[]}', '{"choices":[{"delta":{},"finish_reason":"\\ud800"}]}',
        '{"error":{"message":"\\ud800"}}', '{"error":"%s"}' % ("x" * 100_000),
    ],
    ids=lambda said: said[:60],
)  # fmt: skip
def test_what_a_server_says_can_be_stored(said):
    reply = parse(_raw(said.encode()))
    for text in (reply.response_id, reply.finish_reason, reply.error):
        assert not text or len(text.encode()) <= 2000


def test_what_is_nested_too_deep_to_be_said_can_be_stored():
    said: list = []
    for _ in range(100_000):
        said = [said]
    assert event.storable({"message": said}) == "nested too deep"
    while said:  # part by part: to free it at once may take as deep a stack
        said = said.pop()

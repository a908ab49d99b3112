"""Every fault a server can show, played by the scripted server, ends in its own status."""

from __future__ import annotations

import dataclasses

import pytest
from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer

from kvtop_lib.metrics import Recording, derive, summary
from kvtop_lib.metrics.point import metrics

GOOD = Play()
SHORT = dataclasses.replace(PLAN, window_s=1.0)


def _alternating(bad: Play):
    """Every second request is answered well, so that a point with faults stays a point."""
    return lambda body, n: bad if n % 2 else GOOD


@pytest.mark.parametrize(
    ("bad", "status", "failure", "words", "tokens"),
    [
        (
            Play(bundles=(2, 3, 4), fault="error_event"),
            "stream_error",
            "error_event",
            "scripted fault",
            2,
        ),
        (Play(bundles=(2, 3, 4), fault="garbage"), "stream_error", "garbage", "not JSON", 2),
        (
            Play(bundles=(2, 3, 4), fault="cut", fault_after=2),
            "truncated",
            "cut",
            "the stream was cut",
            5,
        ),
        (Play(bundles=(2, 3), fault="no_done"), "truncated", "no_end_mark", "end mark", 5),
        (Play(bundles=(2, 3), fault="no_finish"), "truncated", "no_final_chunk", "final chunk", 5),
        (Play(status=400), "http_error", "http_4xx", "HTTP 400", 0),
        (Play(status=503), "http_error", "http_5xx", "HTTP 503", 0),
    ],
)
def test_a_fault_has_its_status_and_keeps_its_tokens(tmp_path, bad, status, failure, words, tokens):
    with ScriptedServer(_alternating(bad)) as server:
        requests, chunks, facts = play_point(server, tmp_path, plan=SHORT)
    assert facts["outcome"] == "complete"
    assert len(requests) == len(server.bodies)  # nothing is dropped
    good, faulty = requests[requests.request % 2 == 0], requests[requests.request % 2 == 1]
    assert set(good.status) == {"ok"} and set(good.output_tokens) == {8}
    assert set(faulty.failure) == {failure} and good.failure.isna().all()
    assert set(faulty.status) == {status} and set(faulty.output_tokens) == {tokens}
    assert faulty.error.str.contains(words, regex=False).all()
    last = chunks.groupby("request")["tokens_total"].max()
    assert set(last.loc[last.index % 2 == 0]) == {8}
    point = derive(tmp_path)
    assert point["counts_all"]["ok"] == len(good)
    assert point["counts_all"][status] == len(faulty)


def test_a_stall_is_a_timeout_before_and_after_the_first_token(tmp_path):
    plays = [Play(first_s=30), Play(bundles=(2, 3), fault="hang"), GOOD]
    plan = dataclasses.replace(PLAN, window_s=2.5, timeout_s=0.4)
    with ScriptedServer(lambda body, n: plays[min(n, 2)]) as server:
        requests, _, _ = play_point(server, tmp_path, plan=plan)
    first, second = requests.iloc[0], requests.iloc[1]
    assert (first.status, second.status) == ("timeout", "timeout")
    assert (first.output_tokens, second.output_tokens) == (0, 2)
    assert "no answer" in first.error and "stalled" in second.error
    assert 0.4 <= first.end_s - first.sent_s < 2
    assert set(requests.status[2:]) == {"ok"}


def test_a_refused_connection_fails_the_point_and_does_not_eat_the_trace(tmp_path):
    with ScriptedServer() as server:
        url = server.url
    requests, chunks, facts = play_point(url, tmp_path, c=8, n=100)
    assert set(requests.status) == {"http_error"}
    assert requests.error.str.contains("no connection").all()
    assert facts["sessions"]["used"] < 30 and chunks.empty
    point = derive(tmp_path)
    assert point["status"] == "failed" and "no connection" in point["reason"]
    assert "output_tok_s" not in point


def test_a_lane_waits_after_a_failure(tmp_path):
    with ScriptedServer(lambda body, n: Play(status=503) if n else GOOD) as server:
        _, _, facts = play_point(server, tmp_path)  # 0.8 s, a pause is 0.5 s
    assert 2 <= len(server.bodies) <= 3
    assert facts["outcome"] == "complete"


def test_a_failed_turn_gives_its_session_up(tmp_path):
    def script(body, n):
        return Play(status=500) if body["messages"][-1]["content"].endswith("-1") else GOOD

    with ScriptedServer(script) as server:
        requests, _, _ = play_point(server, tmp_path, sessions=sessions(50, turns=4), plan=PLAN)
    assert set(requests.turn) == {0, 1}
    assert all("" != m["content"] for body in server.bodies for m in body["messages"])


def test_what_does_not_end_in_the_drain_is_cancelled_and_counted(tmp_path):
    plan = dataclasses.replace(PLAN, window_s=0.3, drain_s=0.3)
    with ScriptedServer(lambda body, n: Play(bundles=(3, 1), fault="hang")) as server:
        requests, chunks, facts = play_point(server, tmp_path, c=3, plan=plan)
    assert list(requests.status) == ["cancelled"] * 3
    assert list(requests.output_tokens) == [3] * 3 and len(chunks) == 3
    assert facts["outcome"] == "complete"


def test_a_server_without_counts_gets_no_token_metrics(tmp_path):
    with ScriptedServer(lambda body, n: Play(usage=False, gap_s=0.01)) as server:
        play_point(server, tmp_path)
    point = derive(tmp_path)
    assert point["token_counts"] == "none"
    check = point["audits"]["token_counts"]
    assert check["ok"] is None and check["reason"].startswith("token counts not available")
    assert not {"output_tok_s", "tpot_s", "request_tok_s", "accept_len"} & point.keys()
    if point["status"] == "ok":  # a busy machine may make the client late
        assert point["ttft_s"]["p50"] > 0 and point["e2e_s"]["p50"] > 0


def test_a_count_that_is_missing_now_and_then_makes_the_point_invalid(tmp_path):
    with ScriptedServer(lambda body, n: Play(usage=bool(n % 2), gap_s=0.01)) as server:
        play_point(server, tmp_path)
    point = derive(tmp_path)
    assert point["status"] == "invalid"
    assert "without a token count" in point["reason"] and "output_tok_s" not in point


def test_a_point_of_answers_of_one_chunk_has_no_tpot(tmp_path):
    with ScriptedServer(lambda body, n: Play(bundles=(1,), gap_s=0.01)) as server:
        play_point(server, tmp_path)
    point = derive(tmp_path) | {"status": "ok"}  # a busy machine may make the client late
    found = metrics(Recording.read(tmp_path))
    assert found["tpot_s"]["p50"] is None and found["accept_len"] is None
    said = summary(found | point)
    assert ", TPOT -, " in said and f"{point['counts']['ok']} requests ok" in said


def test_the_first_answer_comes_after_the_reasoning(tmp_path):
    play = Play(bundles=(2, 1, 3, 1), gap_s=0.02, reasoning=2)
    with ScriptedServer(lambda body, n: play) as server:
        requests, chunks, _ = play_point(server, tmp_path, plan=SHORT)
    assert set(requests.status) == {"ok"} and set(requests.output_tokens) == {7}
    by = chunks.groupby("request")["recv_s"]
    assert (requests.first_token_s.to_numpy() == by.nth(0).to_numpy()).all()
    assert (requests.first_answer_s.to_numpy() == by.nth(2).to_numpy()).all()

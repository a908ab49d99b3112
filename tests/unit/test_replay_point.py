"""A point against the scripted server: what was sent is what is recorded."""

from __future__ import annotations

import dataclasses

from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer

from kvtop_lib.metrics import Recording, derive
from kvtop_lib.metrics.point import metrics


def test_tokens_requests_and_order_are_exactly_what_was_sent(tmp_path):
    play = Play(bundles=(3, 2, 1, 2), gap_s=0.01, hist=(2, 3), cached_tokens=4, slices=7)
    with ScriptedServer(lambda body, n: play) as server:
        requests, chunks, facts = play_point(server, tmp_path, c=3)
    assert len(requests) == len(server.bodies) and server.peak <= 3
    assert set(requests.status) == {"ok"}
    assert set(requests.output_tokens) == {8}
    assert set(requests.verify_steps) == {5} and list(requests.accepted_hist[0]) == [2, 3]
    assert set(requests.cached_tokens) == {4} and set(requests.prompt_tokens) == {10}
    assert set(requests.response_id) == {f"chatcmpl-{n}" for n in range(len(requests))}
    gains = chunks.groupby("request")["tokens_total"].apply(list)
    assert all(totals == [3, 5, 6, 8] for totals in gains)
    # one clock for both sides: nothing is received before it was sent
    number = requests.response_id.str.removeprefix("chatcmpl-").astype(int)
    received = {
        n: chunks[chunks.request == r].recv_s for n, r in zip(number, requests.request, strict=True)
    }
    for n, at in received.items():
        sent = [t for m, t, _ in server.sent if m == n]
        assert all(0 <= b - a < 0.5 for a, b in zip(sent, at, strict=True))
    order = ["intended_s", "sent_s", "first_byte_s", "first_token_s", "last_token_s", "end_s"]
    assert (requests[order].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert facts["counters"]["after"]["generation_tokens_total"] == requests.output_tokens.sum()


def test_window_throughput_is_by_chunk_time_without_warmup_and_drain(tmp_path):
    # chunks at 0.3 (warm-up), 0.9 and 1.5 (window), 2.1 s (drain); edges at 0.6 and 1.8 s
    play = Play(bundles=(5, 7, 11, 13), first_s=0.3, gap_s=0.6)
    plan = dataclasses.replace(PLAN, warmup_s=0.6, window_s=1.2)
    with ScriptedServer(lambda body, n: play) as server:
        play_point(server, tmp_path, plan=plan)
    assert len(server.bodies) == 1
    point = derive(tmp_path)
    assert point["status"] == "failed"  # no request was sent in the window: no number
    assert (
        "output_tok_s" not in point and "no request that was sent in the window" in point["reason"]
    )
    # what the server sent inside, unless it sent at an edge and the bytes were late by then
    rec = Recording.read(tmp_path)
    late_s = max(r - t for r, (_, t, _) in zip(rec.chunks.recv_s, server.sent, strict=True))
    inside = sum(n for _, t, n in server.sent if rec.edges[0] <= t < rec.edges[1])
    at_edge = any(edge - late_s <= t < edge for _, t, _ in server.sent for edge in rec.edges)
    assert at_edge or metrics(rec)["output_tokens_window"] == inside > 0


def test_requests_carry_what_the_server_needs(tmp_path):
    with ScriptedServer() as server:
        play_point(server, tmp_path, sessions=sessions(20, turns=2), plan=PLAN)
    body = server.bodies[1]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["return_spec_tokens_details"] is True and body["temperature"] == 0.0
    assert body["max_tokens"] == PLAN.max_output_tokens and "ignore_eos" not in body
    # recorded history, whatever the server answered
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == Play().whole_text


def test_recorded_length_ignores_the_end_of_sequence(tmp_path):
    plan = dataclasses.replace(PLAN, output="recorded", window_s=0.3)
    with ScriptedServer() as server:
        requests, _, _ = play_point(server, tmp_path, plan=plan)
    assert {(b["max_tokens"], b["ignore_eos"]) for b in server.bodies} == {(8, True)}
    assert requests.matches_recorded.isna().all()


def test_outputs_are_compared_with_the_recording(tmp_path):
    other = Play(texts=("else ",) * 8)
    with ScriptedServer(lambda body, n: other if n % 2 else Play(gap_s=0.005)) as server:
        requests, _, _ = play_point(server, tmp_path)
    assert list(requests.matches_recorded) == [r % 2 == 0 for r in requests.request]
    assert requests.output_sha256.nunique() == 2


def test_think_time_is_kept_between_turns(tmp_path):
    plan = dataclasses.replace(PLAN, think_factor=0.5, window_s=1.2)
    thinking = [
        dataclasses.replace(s, turns=tuple(dataclasses.replace(t, think_s=0.8) for t in s.turns))
        for s in sessions(5, turns=5)
    ]
    with ScriptedServer() as server:
        requests, _, _ = play_point(server, tmp_path, plan=plan, sessions=thinking)
    assert len(requests) <= 4
    gaps = requests.sent_s.iloc[1:].to_numpy() - requests.end_s.iloc[:-1].to_numpy()
    assert (gaps >= 0.4).all()


def test_a_trace_that_is_too_short_makes_the_point_invalid(tmp_path):
    with ScriptedServer() as server:
        _, _, facts = play_point(server, tmp_path, n=5)
    assert facts["sessions"] == {"given": 5, "used": 5}
    assert len({b["messages"][0]["content"] for b in server.bodies}) == len(server.bodies) == 5
    point = derive(tmp_path)
    assert point["status"] == "invalid" and "all 5 sessions of load c1 were used" in point["reason"]


def test_a_wrong_server_counter_makes_the_point_invalid(tmp_path):
    with ScriptedServer(lambda body, n: Play(gap_s=0.01), miscount=1) as server:
        play_point(server, tmp_path)
    point = derive(tmp_path)
    assert point["status"] == "invalid" and "the server counted" in point["reason"]


def test_requests_that_the_server_did_not_have_for_as_long_make_the_point_invalid(tmp_path):
    plays = ScriptedServer(lambda body, n: Play(gap_s=0.02), lost_seconds=0.12)
    with plays as server:
        play_point(server, tmp_path, c=4)
    point = derive(tmp_path)
    assert point["audits"]["little"]["ok"] is False
    assert point["status"] == "invalid" and "in flight at the client" in point["reason"]


def test_a_server_without_metrics_is_measured_and_its_checks_are_not_claimed(tmp_path):
    with ScriptedServer(lambda body, n: Play(gap_s=0.02), metrics=False) as server:
        _, _, facts = play_point(server, tmp_path)
    assert facts["counters"] == {"before": {}, "after": {}}
    point = derive(tmp_path)
    checks = point["audits"]
    assert checks["tokens"]["ok"] is None and checks["little"]["ok"] is None
    assert "--enable-metrics" in checks["tokens"]["reason"]
    if point["status"] == "ok":
        assert point["queued_mean"] is None and point["active_source"] == "client"

"""Open loops, random first turns and aborts on purpose, against the scripted server."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest
from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer

from kvtop_lib.metrics import derive
from kvtop_lib.params import OpenLoad
from kvtop_lib.replay import openloop
from kvtop_lib.replay.arrivals import arrival_times
from kvtop_lib.replay.lanes import first_turn
from kvtop_lib.trace.model import Session

TWENTY = OpenLoad(rate=20, arrivals="constant")


def test_sessions_start_when_they_are_due_however_slow_the_server_is(tmp_path):
    plan = dataclasses.replace(PLAN, warmup_s=0.3, window_s=0.7, drain_s=10)
    with ScriptedServer(lambda body, n: Play(first_s=1.5)) as server:
        requests, _, facts = play_point(server, tmp_path, c=TWENTY, plan=plan)
    due = np.array(arrival_times(TWENTY, 1, 1.0))
    assert len(requests) == len(server.bodies) == len(due) == 20
    assert server.peak == 20  # nobody waited for an answer
    start_s = facts["clock"]["start_s"]
    assert np.allclose(requests.intended_s - start_s, due, atol=1e-6)
    assert (requests.sent_s >= requests.intended_s).all()
    assert list(requests.phase) == ["warmup" if t < 0.3 else "window" for t in due]
    assert set(requests.status) == {"ok"} and list(requests.lane) == list(range(20))
    assert (facts["load"], facts["c"], facts["rate"]) == ("r20.00-constant", None, 20)
    assert facts["shape"]["loop"] == "open" and facts["shape"]["starts"] == 20


class Slow(Session):
    """A session whose prompt takes long to write."""

    def request_messages(self, k):
        time.sleep(0.7)
        return super().request_messages(k)


def test_what_a_late_client_could_not_send_in_time_is_sent_and_counted_from_its_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(openloop, "AHEAD", 1)  # else all are written before the first is due
    usual = sessions(20)
    with ScriptedServer() as server:
        plain, _, _ = play_point(server, tmp_path / "a", c=TWENTY, sessions=usual)
        at = [list(plain.session)[i] for i in (4, 12)]
        slow = [Slow(**vars(s)) if s.id in at else s for s in usual]
        requests, _, facts = play_point(server, tmp_path / "b", c=TWENTY, sessions=slow)
    # the client wrote for twice 0.7 s of 0.8 s, past the end of sending; the prompts are the same
    assert list(requests.session) == list(plain.session) and len(requests) == 16
    start_s = facts["clock"]["start_s"]
    due = np.array(arrival_times(TWENTY, 1, 0.8))
    assert np.allclose(requests.intended_s - start_s, due, atol=1e-6)
    assert (requests.sent_s - requests.intended_s).max() > 0.4
    assert (requests.sent_s > start_s + 0.8).any() and set(requests.phase) == {"window"}
    point = derive(tmp_path / "b")
    if point["status"] == "ok":  # the lag check may refuse it, rightly
        assert point["ttft_intended_s"]["p99"] > point["ttft_s"]["p99"] + 0.4
        assert point["send_delay_s"]["max"] > 0.4 and point["asked_rate"] == pytest.approx(20)


def test_a_later_turn_follows_the_answer_before_it_and_the_think_time(tmp_path):
    plan = dataclasses.replace(PLAN, think_factor=0.5, think_cap_s=0.3, window_s=1.5)
    thinking = [
        dataclasses.replace(s, turns=tuple(dataclasses.replace(t, think_s=0.8) for t in s.turns))
        for s in sessions(30, turns=3)
    ]
    with ScriptedServer() as server:
        load = OpenLoad(rate=8, arrivals="constant")
        requests, _, facts = play_point(server, tmp_path, c=load, plan=plan, sessions=thinking)
    end_s = facts["clock"]["start_s"] + 1.5
    for _, turns in requests.groupby("session"):
        assert list(turns.turn) == list(range(len(turns)))
        pause = turns.intended_s.to_numpy()[1:] - turns.end_s.to_numpy()[:-1]
        assert pause == pytest.approx(0.3, abs=1e-6)  # 0.4 s, capped
    assert (requests.intended_s < end_s).all()
    assert (requests.turn > 0).any() and requests.session.nunique() == 12


def test_aborted_requests_are_cancelled_at_the_server_and_judge_nothing(tmp_path):
    play = Play(bundles=(1,) * 20, gap_s=0.02)  # 0.4 s or more
    plan = dataclasses.replace(PLAN, window_s=2, cancel_share=0.5, cancel_within_s=0.2)
    with ScriptedServer(lambda body, n: play) as server:
        requests, _, _ = play_point(server, tmp_path, c=4, plan=plan, sessions=sessions(200, 3))
    drawn = requests[requests.cancel_after_s.notna()]
    assert 0 < len(drawn) < len(requests)
    for r in requests.itertuples():
        expected = plan.cancel_after_s(1, r.session, r.turn)
        assert expected == r.cancel_after_s or (expected is None and np.isnan(r.cancel_after_s))
    assert set(drawn.status) == {"cancelled"}
    assert drawn.error.str.startswith("aborted on purpose after").all()
    assert ((drawn.end_s - drawn.sent_s) >= drawn.cancel_after_s - 0.01).all()
    assert set(requests[requests.cancel_after_s.isna()].status) == {"ok"}
    # a session ends with its aborted turn
    last = requests.groupby("session").turn.max()
    assert (drawn.set_index("session").turn == last[drawn.session]).all()
    point = derive(tmp_path)
    in_window = drawn[drawn.phase == "window"]
    assert point["counts"]["cancelled"] == point["aborted_on_purpose"] == len(in_window)
    if point["status"] == "ok":
        assert point["e2e_s"]["p99"] < float("inf")


def test_lanes_may_start_at_a_random_turn_which_comes_with_its_history(tmp_path):
    plan = dataclasses.replace(PLAN, start="random_turn", window_s=1.0)
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, _, facts = play_point(server, tmp_path, c=6, plan=plan, sessions=sessions(80, 4))
    first = requests.groupby("lane").first()
    assert [first.turn[lane] for lane in range(6)] == [first_turn(plan, 1, i, 4) for i in range(6)]
    assert first.turn.nunique() > 1 and facts["shape"]["start"] == "random_turn"
    for body, turn in zip(server.bodies, requests.sort_values("sent_s").turn, strict=True):
        assert len(body["messages"]) == 2 * turn + 1
    entered = set(first.session)
    others = requests[~requests.session.isin(entered)].groupby("session").turn.min()
    assert (others == 0).all() and len(others) > 0


def test_random_first_turns_are_spread_over_the_session():
    plan = dataclasses.replace(PLAN, start="random_turn")
    seen = Counter(first_turn(plan, 3, lane, 5) for lane in range(2000))
    assert set(seen) == set(range(5))
    assert all(abs(n - 400) < 4 * (400 * 0.8) ** 0.5 for n in seen.values())
    assert {first_turn(PLAN, 3, lane, 5) for lane in range(50)} == {0}


def test_an_interrupted_open_loop_keeps_what_was_recorded(tmp_path):
    main = threading.main_thread().ident

    def script(body, n):
        if n == 10:
            signal.pthread_kill(main, signal.SIGINT)
        return Play(first_s=0.05)

    plan = dataclasses.replace(PLAN, window_s=15)
    with ScriptedServer(script) as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=TWENTY, plan=plan)
    assert len(server.bodies) < 150
    assert derive(tmp_path)["status"] == "aborted"

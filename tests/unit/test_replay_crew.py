"""A point played by two client processes, against the scripted server: as by one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import psutil
import pytest
from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer
from worker_help import BrokenElsewhere, Writer

from kvtop_lib.metrics import derive
from kvtop_lib.params import OpenLoad
from kvtop_lib.replay import crew, openloop, processes, remote
from kvtop_lib.replay.arrivals import arrival_times
from kvtop_lib.replay.record import numbered
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import Session, Turn

OPEN = OpenLoad(rate=20, arrivals="constant")
LONG = dataclasses.replace(PLAN, warmup_s=600, window_s=60, drain_s=600, timeout_s=600)


def workers(pid: int | None = None) -> list[int]:
    """Further client processes that live below a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [p.pid for p in below if remote.MODULE in " ".join(p.cmdline())]


@pytest.fixture
def played(monkeypatch) -> list[list]:
    """Records as each process had them, the first one's first; all workers end with the point."""
    found: list[list] = []

    def noted(*parts):
        found.extend(list(p) for p in parts)
        return numbered(*parts)

    monkeypatch.setattr(crew, "numbered", noted)
    yield found
    assert workers() == []


def never_ready(monkeypatch) -> list[int]:
    """No further process is ready in time; those that have begun."""
    began, start = [], remote.Remote.meet

    async def meet(self, setup):
        began.append(self.pid)
        await start(self, setup)
        self.ready.set = lambda: None

    monkeypatch.setattr(remote.Remote, "meet", meet)
    return began


def always_wanted(monkeypatch) -> None:
    """A second process is wanted at once, also near the window."""
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(processes, "START_S", 0.0)
    monkeypatch.setattr(processes, "room", lambda cores, local: 2)
    monkeypatch.setattr(processes, "wanted", lambda lag_s, running, most: 2)


def whole(requests: pd.DataFrame, chunks: pd.DataFrame, server: ScriptedServer) -> None:
    """Every request of the server is there, numbered as sent; no turn is played twice."""
    assert len(requests) == len(server.bodies) == requests.response_id.nunique()
    assert list(requests.request) == list(range(len(requests)))
    assert requests.sent_s.is_monotonic_increasing
    assert set(chunks.request) <= set(requests.request)
    asked = [b["messages"][-1]["content"] for b in server.bodies]
    assert sorted(asked) == sorted(
        f"ask {int(s[1:])}-{k}" for s, k in zip(requests.session, requests.turn, strict=True)
    )
    assert len(set(asked)) == len(asked)
    for _, turns in requests.groupby("session"):
        assert list(turns.turn) == list(range(len(turns)))
    for _, lane in requests.groupby("lane"):  # one at a time, and one session after the other
        assert (lane.sent_s.to_numpy()[1:] >= lane.end_s.to_numpy()[:-1]).all()
        assert (lane.session != lane.session.shift()).sum() == lane.session.nunique()


@pytest.mark.parametrize("load", [5, OPEN], ids=["closed", "open"])
def test_two_processes_record_what_one_would(tmp_path, played, load):
    play = Play(bundles=(3, 2, 1, 2), gap_s=0.01, hist=(2, 3), cached_tokens=4)
    plan = dataclasses.replace(PLAN, window_s=1.0)
    with ScriptedServer(lambda body, n: play) as server:
        requests, chunks, facts = play_point(
            server, tmp_path, c=load, plan=plan, sessions=sessions(400, turns=2), processes=2
        )
    whole(requests, chunks, server)
    one, two = ({r.lane for r in part} for part in played)
    assert one | two == set(range(5 if load == 5 else 20)) == set(requests.lane)
    assert not one & two and all(lane % 2 == 0 for lane in one)
    assert set(requests.status) == {"ok"} and set(requests.output_tokens) == {8}
    assert set(requests.verify_steps) == {5} and list(requests.accepted_hist[0]) == [2, 3]
    assert all(
        totals == [3, 5, 6, 8] for totals in chunks.groupby("request").tokens_total.apply(list)
    )
    order = ["intended_s", "sent_s", "first_byte_s", "first_token_s", "last_token_s", "end_s"]
    assert (requests[order].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert facts["outcome"] == "complete"
    client = facts["client"]
    assert client["processes"] == 2 and client["connections_opened"] >= 2
    assert client["loop_lag_p99_s"] >= 0 and client["event_loop"]
    assert facts["counters"]["after"]["generation_tokens_total"] == requests.output_tokens.sum()
    assert facts["sessions"]["used"] == requests.session.nunique()
    rows = pd.read_parquet(tmp_path / "scrapes.parquet")
    assert rows.client_cpu_s.is_monotonic_increasing and (rows.client_rss_bytes > 0).all()
    assert derive(tmp_path)["counts_all"]["ok"] == len(requests)


def test_no_more_processes_than_lanes(tmp_path, played):
    with ScriptedServer() as server:
        requests, chunks, facts = play_point(server, tmp_path, processes=3)
    whole(requests, chunks, server)
    assert facts["client"]["processes"] == len(played) == 1


def test_an_open_loop_leaves_nothing_out_and_aborts_the_same_in_one_process_and_two(
    tmp_path, played
):
    plan = dataclasses.replace(PLAN, window_s=1.5, cancel_share=0.4, cancel_within_s=0.1)
    found = []
    for n in (1, 2):
        with ScriptedServer(lambda body, n: Play(bundles=(1,) * 8, gap_s=0.05)) as server:
            requests, _, facts = play_point(
                server, tmp_path / str(n), c=OPEN, plan=plan, processes=n
            )
        due = np.array(arrival_times(OPEN, 1, 1.5))
        by = requests.sort_values("lane")
        assert list(by.lane) == list(range(len(due))) and len(due) == 30
        assert np.allclose(by.intended_s - facts["clock"]["start_s"], due, atol=1e-6)
        drawn = requests[requests.cancel_after_s.notna()]
        assert set(drawn.status) == {"cancelled"} and set(drawn.failure) == {"on_purpose"}
        assert set(requests[requests.cancel_after_s.isna()].status) == {"ok"}
        aborted = dict(zip(drawn.session, drawn.cancel_after_s, strict=True))
        found.append((list(by.session), aborted))
    assert found[0] == found[1] and 0 < len(found[0][1]) < 30


def test_a_slice_that_is_used_up_ends_the_point(tmp_path, played):
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, chunks, facts = play_point(server, tmp_path, c=4, n=40, plan=LONG, processes=2)
    ended = requests[requests.status == "ok"]
    assert len({b["messages"][0]["content"] for b in server.bodies}) == len(server.bodies)
    assert facts["outcome"] == "exhausted" and len(ended) >= 30
    assert facts["sessions"] == {"given": 40, "used": requests.session.nunique()}


def hanging(at: int, then) -> object:
    """A script: ten good answers, then none ends; ``then`` is done after request ``at``."""

    def script(body, n):
        if n == at:
            threading.Timer(1.0, then).start()
        return Play(gap_s=0.05) if n < 10 else Play(bundles=(3, 1), fault="hang")

    return script


def test_an_interrupt_stops_all_and_keeps_what_was_recorded(tmp_path, played):
    main = threading.main_thread().ident
    script = hanging(13, lambda: signal.pthread_kill(main, signal.SIGINT))
    with ScriptedServer(script) as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=4, plan=LONG, processes=2)
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    whole(requests, pd.read_parquet(tmp_path / "chunks.parquet"), server)
    assert requests.status.value_counts().to_dict() == {"ok": 10, "cancelled": 4}
    assert set(requests[requests.status == "cancelled"].output_tokens) == {3}
    assert all(any(r.reply.status == "cancelled" for r in part) for part in played)
    assert (derive(tmp_path)["status"], derive(tmp_path)["reason"]) == ("aborted", "interrupted")


def test_signals_to_all_processes_lose_no_request(tmp_path, played):
    def end_all():
        [pid] = workers()
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()

    main = threading.main_thread().ident
    with ScriptedServer(hanging(13, end_all)) as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=4, plan=LONG, processes=2)
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    assert requests.status.value_counts().to_dict() == {"ok": 10, "cancelled": 4}
    assert len(server.bodies) == 14 and all(len(part) for part in played)
    assert read_json(tmp_path / "recording.json")["outcome"] == "aborted"


def test_a_process_that_dies_fails_the_point_and_keeps_what_was_recorded(tmp_path, played):
    def kill():
        [pid] = workers()
        os.kill(pid, signal.SIGKILL)

    with ScriptedServer(hanging(13, kill)) as server:
        requests, _, facts = play_point(server, tmp_path, c=4, plan=LONG, processes=2)
    assert requests.status.value_counts().to_dict() == {"ok": 10, "cancelled": 2}
    assert len(server.bodies) == 14 and list(requests.request) == list(range(12))
    assert {r.reply.status for r in played[1]} <= {"ok"}  # told before it died
    assert facts["outcome"] == "failed"
    said = facts["reason"]
    assert said.startswith("client process ") and "ended by itself (killed by signal 9)" in said
    point = derive(tmp_path)
    assert point["status"] == "failed" and point["counts_all"]["ok"] == 10


def test_a_process_that_cannot_begin_fails_the_point_before_anything_is_sent(
    tmp_path, played, monkeypatch
):
    monkeypatch.setattr(remote, "MODULE", "kvtop_lib.replay.nowhere")
    with ScriptedServer() as server:
        requests, _, facts = play_point(server, tmp_path, c=4, plan=LONG, processes=2)
    assert len(requests) == 0 and server.bodies == []
    assert facts["outcome"] == "failed" and "No module named" in facts["reason"]


def test_a_process_that_never_gets_ready_fails_the_point(tmp_path, played, monkeypatch):
    monkeypatch.setattr(crew, "READY_S", 0.5)
    never_ready(monkeypatch)
    with ScriptedServer() as server:
        requests, _, facts = play_point(server, tmp_path, c=4, plan=LONG, processes=2)
    assert len(requests) == 0 and server.bodies == []
    assert facts["outcome"] == "failed"
    assert facts["reason"] == "a client process did not begin within 0.5 s; measure again"


def test_what_goes_wrong_in_a_process_is_raised_here(tmp_path, played):
    broken = [BrokenElsewhere(**vars(s)) for s in sessions(400, turns=2)]
    with ScriptedServer() as server, pytest.raises(KvtopError, match="no second prompt"):
        play_point(server, tmp_path, c=4, plan=LONG, processes=2, sessions=broken)
    assert 0 < len(server.bodies)


def test_prompts_of_token_blocks_are_written_in_every_process(tmp_path, played):
    def blocks(i: int) -> Session:
        turn = Turn((), None, 8, "unknown", 10, blocks=Blocks.of([i], 16))
        return Session(f"s{i:04}", "task", (turn,), text=writer)

    writer = Writer()
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, chunks, _ = play_point(
            server, tmp_path, c=4, sessions=[blocks(i) for i in range(300)], processes=2
        )
    whole(requests, chunks, server)
    assert all(len(part) for part in played) and set(requests.unshared_tokens) == {10}


@pytest.mark.parametrize("load", [4, OPEN], ids=["closed", "open"])
def test_a_process_that_comes_later_takes_its_share_over(tmp_path, played, monkeypatch, load):
    main, told = threading.main_thread().ident, []
    heard = remote.Remote._has_ended

    def ended(self, *what):
        told.append(what)
        if len(told) == 20:
            signal.pthread_kill(main, signal.SIGINT)
        heard(self, *what)

    monkeypatch.setattr(remote.Remote, "_has_ended", ended)
    monkeypatch.setattr(openloop, "AHEAD", 4)
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(processes, "room", lambda cores, local: 2)
    monkeypatch.setattr(processes, "wanted", lambda lag_s, running, most: 2)
    plan = dataclasses.replace(LONG, warmup_s=100, window_s=1)
    with ScriptedServer(lambda body, n: Play(gap_s=0.01)) as server:
        with pytest.raises(KeyboardInterrupt):
            play_point(server, tmp_path, c=load, plan=plan, sessions=sessions(6000, turns=3))
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    facts = read_json(tmp_path / "recording.json")
    assert facts["client"]["processes"] == 2 and facts["outcome"] == "aborted"
    one, two = (pd.DataFrame([vars(r) for r in part]) for part in played)
    assert len(two) >= 20 and len(one) > 0
    if load == 4:  # half of the lanes, which went on where they were
        assert set(two.lane) < set(one.lane) == set(range(4)) and two.lane.nunique() == 2
    else:  # every other arrival
        assert set(two.lane % 2) == {1} and not set(two.lane) & set(one.lane)
    asked = [b["messages"][-1]["content"] for b in server.bodies]
    told = {f"ask {int(s[1:])}-{k}" for s, k in zip(requests.session, requests.turn, strict=True)}
    assert len(set(asked)) == len(asked) and set(asked) <= told and len(told) == len(requests)
    assert set(requests.status) <= {"ok", "cancelled"}
    for _, turns in requests.groupby("session"):
        assert list(turns.turn) == list(range(len(turns)))
    for _, lane in requests.groupby("lane"):
        assert (lane.sent_s.to_numpy()[1:] >= lane.end_s.to_numpy()[:-1]).all()


def test_no_process_comes_when_the_window_is_near(tmp_path, played, monkeypatch):
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(processes, "room", lambda cores, local: 8)
    monkeypatch.setattr(processes, "wanted", lambda lag_s, running, most: most)
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, chunks, facts = play_point(server, tmp_path, c=4)
    whole(requests, chunks, server)
    assert facts["client"]["processes"] == 1 == len(played)


def test_a_process_that_is_ready_too_late_for_the_window_plays_nothing(
    tmp_path, played, monkeypatch
):
    always_wanted(monkeypatch)
    began = never_ready(monkeypatch)
    plan = dataclasses.replace(PLAN, warmup_s=0.5)
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, chunks, facts = play_point(server, tmp_path, c=4, plan=plan)
    whole(requests, chunks, server)
    assert facts["client"]["processes"] == 1 and facts["outcome"] == "complete"
    assert len(began) == len(played) == 1


def test_no_process_begins_for_arrivals_that_are_due_in_the_window(tmp_path, played, monkeypatch):
    always_wanted(monkeypatch)
    began = never_ready(monkeypatch)
    plan = dataclasses.replace(PLAN, warmup_s=1.0, window_s=2.0)  # 60 arrivals, 32 dealt ahead
    with ScriptedServer() as server:
        requests, _, facts = play_point(server, tmp_path, c=OPEN, plan=plan)
    assert began == [] and len(requests) == len(server.bodies) == 60
    assert facts["client"]["processes"] == len(played) == 1


def test_a_further_process_that_cannot_begin_is_dropped(tmp_path, played, monkeypatch, capsys):
    always_wanted(monkeypatch)
    monkeypatch.setattr(remote, "MODULE", "kvtop_lib.replay.nowhere")
    plan = dataclasses.replace(PLAN, warmup_s=600, window_s=1)
    lost, main = remote.Remote.close, threading.main_thread().ident

    async def close(self):
        await lost(self)
        asyncio.get_running_loop().call_later(0.5, signal.pthread_kill, main, signal.SIGINT)

    monkeypatch.setattr(remote.Remote, "close", close)
    with ScriptedServer(lambda body, n: Play(gap_s=0.05)) as server:
        with pytest.raises(KeyboardInterrupt):
            play_point(server, tmp_path, c=4, plan=plan)
    facts = read_json(tmp_path / "recording.json")
    assert (facts["outcome"], facts["reason"]) == ("aborted", "interrupted")
    assert facts["client"]["processes"] == len(played) == 1
    said = capsys.readouterr().err
    assert said.startswith("the client stays at 1 of 2 processes: client process ")
    assert said.count("\n") == 1 and "No module named" in said


def test_a_process_that_got_no_lane_does_not_count(tmp_path, played, monkeypatch):
    always_wanted(monkeypatch)
    main, allow = threading.main_thread().ident, remote.Remote.allow

    def joined(self, lanes):
        allow(self, lanes)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(remote.Remote, "allow", joined)
    with ScriptedServer(lambda body, n: Play(fault="hang")) as server:  # no turn ends
        with pytest.raises(KeyboardInterrupt):
            play_point(server, tmp_path, c=4, plan=LONG)
    facts = read_json(tmp_path / "recording.json")
    assert facts["client"]["processes"] == 1 and len(played) == 2
    assert len(server.bodies) == len(pd.read_parquet(tmp_path / "requests.parquet")) == 4


def test_a_process_does_not_outlive_the_one_that_began_it(tmp_path):
    all_ask = threading.Event()

    def script(body, n):
        if n == 3:
            all_ask.set()
        return Play(bundles=(3, 1), fault="hang")

    argv = [sys.executable, "-m", "kvtop_lib.replay", "--model", "m", "--trace"]
    argv += ["builtin:agent-tiny", "--concurrency", "4", "--processes", "2", "--stagger", "0"]
    argv += ["--out", str(tmp_path / "out"), "--window", "600", "--timeout", "600"]
    with ScriptedServer(script) as server:
        with subprocess.Popen([*argv, "--url", server.url], stderr=subprocess.PIPE) as p:
            asked = all_ask.wait(120)
            below = [psutil.Process(pid) for pid in workers(p.pid)]
            p.kill()
            assert asked and len(below) == 1, p.stderr.read()
        assert psutil.wait_procs(below, timeout=60)[1] == []


def test_what_is_no_number_of_processes_is_told_before_anything_is_asked(tmp_path):
    with ScriptedServer() as server:
        with pytest.raises(KvtopError, match="'two' is no number of client processes"):
            play_point(server, tmp_path / "out", processes="two")
        assert (server.bodies, server.pages) == ([], 0) and not list(tmp_path.iterdir())

"""Around a point: interrupts, notebooks, repeats, the command line."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import runpy
import signal
import socket
import sys
import threading

import pytest
from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer

from kvtop_lib.metrics import derive
from kvtop_lib.params import OpenLoad
from kvtop_lib.replay import SessionPool, flush
from kvtop_lib.replay.__main__ import main as cli
from kvtop_lib.replay.job import Job
from kvtop_lib.replay.progress import Progress
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Trace


def test_an_interrupt_keeps_what_was_recorded(tmp_path):
    main = threading.main_thread().ident

    def script(body, n):
        if n == 20:
            signal.pthread_kill(main, signal.SIGINT)
        return Play(gap_s=0.01)

    plan = dataclasses.replace(PLAN, window_s=60)
    with ScriptedServer(script) as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=2, plan=plan)
    assert len(server.bodies) < 100  # the point did not go on
    point = derive(tmp_path)
    assert point["status"] == "aborted" and point["counts_all"]["ok"] >= 18


@pytest.mark.parametrize("load", [2, OpenLoad(rate=20, arrivals="constant")])
def test_an_interrupt_in_the_drain_ends_it_and_keeps_what_was_recorded(tmp_path, load):
    main, plan = threading.main_thread().ident, dataclasses.replace(PLAN, window_s=0.5)

    def script(body, n):
        if n == 1:  # long after the window and long before the drain's end
            threading.Timer(1.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        return Play() if n == 0 else Play(bundles=(3, 1), fault="hang")

    endless = dataclasses.replace(plan, drain_s=600, timeout_s=600)
    with ScriptedServer(script) as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=load, plan=endless)
    point, window = derive(tmp_path), read_json(tmp_path / "recording.json")["window"]
    assert (point["status"], point["reason"]) == ("aborted", "interrupted")
    assert point["counts_all"]["ok"] == 1
    assert point["counts_all"]["cancelled"] == len(server.bodies) - 1 > 0
    assert 0 < window["drained_s"] - window["w1_s"] < 300


@pytest.mark.parametrize("after", [True, False])
def test_an_interrupt_while_the_thread_starts_ends_it_in_order(tmp_path, monkeypatch, after):
    start, interrupts = threading.Thread.start, []

    def interrupted(self):
        if self.name != "kvtop-replay" or interrupts:
            return start(self)
        interrupts.append(1)
        if after:
            start(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    plan = dataclasses.replace(PLAN, window_s=600)
    with ScriptedServer() as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, plan=plan)
    assert derive(tmp_path)["status"] == "aborted"


def test_an_interrupt_while_the_command_is_imported_ends_it_in_order(monkeypatch, capsys):
    taken = builtins.__import__

    def interrupted(name, *args, **more):
        if name == "kvtop_lib.metrics":
            raise KeyboardInterrupt
        return taken(name, *args, **more)

    monkeypatch.delitem(sys.modules, "kvtop_lib.replay.__main__")
    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit, match="130"):
        runpy.run_module("kvtop_lib.replay", run_name="__main__")
    assert capsys.readouterr().err == "interrupted before anything was sent\n"


def test_an_interrupt_does_not_wait_for_a_server_that_does_not_answer(tmp_path):
    main, asked = threading.main_thread().ident, []

    def interrupt():
        asked.append(silent.accept()[0])  # for /model_info
        signal.pthread_kill(main, signal.SIGINT)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            play_point(url, tmp_path)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing was asked for after it
            silent.accept()
    asked[0].close()
    assert derive(tmp_path)["status"] == "aborted"


def test_an_interrupt_after_the_traffic_says_where_the_records_are(tmp_path, capsys, monkeypatch):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvtop_lib.replay.__main__.derive", interrupted)
    out = tmp_path / "point"
    asked = ["--concurrency", "1", "--burn-in", "0", "--warmup", "0", "--window", "0.3"]
    with ScriptedServer() as server:
        assert cli(["--url", server.url, "--model", "m", "--out", str(out), *asked]) == 130
    assert f"interrupted; the records are in {out}" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_ends_in_order(tmp_path, number, code):
    main = threading.main_thread().ident

    def script(body, n):
        if n == 20:
            signal.pthread_kill(main, number)
        return Play(gap_s=0.01)

    out, before = tmp_path / "point", signal.getsignal(signal.SIGTERM)
    asked = ["--concurrency", "2", "--burn-in", "0", "--warmup", "0", "--window", "60"]
    with ScriptedServer(script) as server:
        ended = cli(["--url", server.url, "--model", "m", "--out", str(out), *asked])
    assert ended == code and signal.getsignal(signal.SIGTERM) is before
    point = read_json(out / "point.json")
    assert point["status"] == "aborted" and point["counts_all"]["ok"] >= 18


def test_an_interrupt_before_the_first_request_is_not_lost(tmp_path):
    async def interrupted() -> None:
        job.interrupt()
        await job.run()

    with ScriptedServer() as server:
        pool = SessionPool(sessions(10), [1], 1)
        labels = {"load": "c1", "c": 1, "arm": "a"}
        job = Job(
            server.url, "m", pool.slice(1), 1, dataclasses.replace(PLAN, window_s=60), 1, tmp_path,
            labels, 1.0, Progress("a", "off"),
        )  # fmt: skip
        asyncio.run(interrupted())
    point = derive(tmp_path)
    assert point["status"] == "aborted" and sum(point["counts_all"].values()) <= 1


def test_a_point_runs_inside_a_running_loop_as_in_a_notebook(tmp_path):
    async def cell(server):
        return play_point(server, tmp_path, plan=dataclasses.replace(PLAN, window_s=0.3))

    with ScriptedServer() as server:
        requests, _, _ = asyncio.run(cell(server))
    assert set(requests.status) == {"ok"}


def test_a_recording_is_never_overwritten(tmp_path):
    plan = dataclasses.replace(PLAN, window_s=0.2)
    with ScriptedServer() as server:
        play_point(server, tmp_path, plan=plan)
        with pytest.raises(KvtopError, match="a retry is a new attempt"):
            play_point(server, tmp_path, plan=plan)


def test_two_replays_do_not_write_into_one_folder(tmp_path):
    refused = []

    def second(body: dict, n: int) -> Play:
        if n == 0:
            try:
                play_point("http://127.0.0.1:1", tmp_path)
            except KvtopError as told:
                refused.append(str(told))
        return Play()

    # the first point must outlast the second's attempt, however slow the machine
    plan = dataclasses.replace(PLAN, window_s=0.3, drain_s=60, timeout_s=60)
    with ScriptedServer(script=second) as server:
        requests, _, _ = play_point(server, tmp_path, plan=plan)
    assert len(requests) and len(refused) == 1 and "another replay is writing to" in refused[0]


@pytest.mark.parametrize("out", ["file", "file/point", "/proc/self", "/proc/self/point", "a" * 300])
def test_a_folder_that_cannot_take_records_is_told_before_anything_is_asked(tmp_path, capsys, out):
    (tmp_path / "file").write_text("")
    with ScriptedServer() as server:
        args = ["--url", server.url, "--model", "m", "--concurrency", "1"]
        args += ["--trace", "builtin:agent-tiny", "--out", str(tmp_path / out)]
        assert cli(args) == 1
        with pytest.raises(KvtopError, match="cannot be written to .*; give another folder"):
            play_point(server, tmp_path / out)
        assert (server.bodies, server.flushes, server.pages) == ([], 0, 0)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_address_of_another_client_is_taken(tmp_path):
    with ScriptedServer() as server:
        plan = dataclasses.replace(PLAN, window_s=0.3)
        requests, _, _ = play_point(server.url + "/v1/", tmp_path, plan=plan)
    assert set(requests.status) == {"ok"}


def test_a_server_without_the_route_is_not_flushed_and_is_told_how():
    with ScriptedServer() as server, pytest.raises(KvtopError, match="give --no-flush"):
        flush(server.url + "/elsewhere")


def test_flush_reaches_the_server_and_a_refusal_is_an_error():
    with ScriptedServer() as server:
        flush(server.url)
        assert server.flushes == 1
        server.running = 1
        with pytest.raises(KvtopError, match="did not flush its cache .HTTP 400."):
            flush(server.url)
    with pytest.raises(KvtopError, match="is the server up"):
        flush(server.url, timeout_s=1)


def test_the_command_line_writes_all_records(tmp_path, capsys):
    trace, out = tmp_path / "t.jsonl", tmp_path / "out"
    lines = Trace("t", {}, tuple(sessions(300))).lines()
    trace.write_text("".join(line + "\n" for line in lines))
    with ScriptedServer(lambda body, n: Play(gap_s=0.02)) as server:
        times = "--burn-in 0 --warmup 0.1 --window 1.5 --drain 2 --timeout 5 --seed 3".split()
        argv = ["--url", server.url, "--model", "m", "--trace", str(trace), "--concurrency", "2"]
        code = cli([*argv, *times, "--out", str(out)])
        again = cli([*argv, *times, "--out", str(out)])
    printed = capsys.readouterr()
    # a busy machine may make the client late, which the point then says
    status = read_json(out / "point.json")["status"]
    assert (code, again) == (int(status != "ok"), 1), printed
    assert f"c2: {status}" in printed.out and "already holds a recording" in printed.err
    assert server.flushes == 1  # the second was refused before anything was done
    names = {
        "requests.parquet",
        "chunks.parquet",
        "scrapes.parquet",
        "recording.json",
        "point.json",
    }
    assert {p.name for p in out.iterdir()} == names

"""The machine beside the pages: processes, memory, GPUs; and what a point keeps of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from replay_help import play_point
from scripted_server import ScriptedServer

from kvtop_lib.replay import machine
from kvtop_lib.replay.machine import Gpus, Machine, is_local, server_processes
from kvtop_lib.replay.request import session
from kvtop_lib.replay.scrape import Scraper

CHILD = """
import os, socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
pid = os.fork()
if pid == 0:
    s.close(); time.sleep(60); os._exit(0)
print(s.getsockname()[1], pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def listener():
    """A process that listens, and a child of it: (port, pids)."""
    env = {**os.environ, "KVTOP_RECORD": "somewhere"}
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, env=env) as p:
        port, child = map(int, p.stdout.readline().split())
        yield port, {p.pid, child}
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(child).kill()
        p.kill()


def test_a_file_that_a_server_has_open_is_found_by_its_name(tmp_path):
    code = "import sys, socket; f = open(sys.argv[1], 'w');"
    code += (
        "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    file = tmp_path / "iterations.jsonl"
    command = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        found = Machine(f"http://127.0.0.1:{int(p.stdout.readline())}")
        assert found.open_file("iterations.jsonl") == str(file)
        assert found.open_file("other.jsonl") is None
        p.kill()
    assert found.open_file("iterations.jsonl") is None  # it has ended


def test_the_processes_of_a_server(listener):
    port, pids = listener
    url = f"http://127.0.0.1:{port}"
    assert {p.pid for p in server_processes(url)} == pids
    found = Machine(url)
    assert found.environment("KVTOP_RECORD") == "somewhere"
    assert found.environment("KVTOP_NOTHING") is None
    sample = found.sample(pss=True)
    rss = sum(psutil.Process(pid).memory_info().rss for pid in pids)
    assert sample["server_rss_bytes"] == pytest.approx(rss, rel=0.2)
    assert 0 < sample["server_pss_bytes"] <= sample["server_rss_bytes"]
    total = psutil.virtual_memory().total
    assert sample["host_used_bytes"] + sample["host_available_bytes"] == total
    assert set(sample) <= set(machine.COLUMNS)


SPIN = """
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
t = time.process_time()
while time.process_time() - t < 0.3: pass
print(s.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_cpu_seconds_of_the_server_and_of_the_machine():
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as p:
        found = Machine(f"http://127.0.0.1:{int(p.stdout.readline())}")
        first, cores = found.sample(), psutil.cpu_count()
        assert 0.3 <= first["server_cpu_s"] < 3
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            pass
        second, took = found.sample(), time.monotonic() - began
        p.kill()
    gained = {k: second[k] - first[k] for k in first}
    assert gained["host_cpu_s"] == pytest.approx(cores * took, rel=0.3)
    assert 0 <= gained["host_idle_s"] <= gained["host_cpu_s"]
    assert 0 < gained["client_cpu_s"] <= took + 0.05
    assert gained["server_cpu_s"] < 0.1  # it slept


def test_processes_that_end_are_left_out(listener):
    port, pids = listener
    found = Machine(f"http://127.0.0.1:{port}")
    for pid in pids:
        psutil.Process(pid).kill()
    psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], timeout=10)
    assert found.sample().get("server_rss_bytes", 0) == 0


def test_a_server_elsewhere_tells_nothing_of_this_machine():
    # 192.0.2.0/24 is reserved for documentation
    assert not is_local("http://192.0.2.7:30000")
    assert server_processes("http://192.0.2.7:30000") == []
    assert set(Machine("http://192.0.2.7:30000").sample()) == {
        "client_rss_bytes",
        "client_cpu_s",
    }
    assert is_local("http://localhost:1") and is_local("http://[::1]:1")


def nvml(power=lambda handle: 250_000):
    """A stand-in for NVML with two GPUs."""
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(used=(i + 1) * 10**9),
        nvmlDeviceGetUtilizationRates=lambda i: SimpleNamespace(gpu=[40, 80][i]),
        nvmlDeviceGetPowerUsage=power,  # milliwatts
    )


def test_two_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert Gpus().sample() == {
        "gpu_memory_bytes": 3e9,
        "gpu_utilisation": pytest.approx(0.6),
        "gpu_power_w": 500.0,
    }


def test_a_gpu_without_a_power_meter_and_a_machine_without_a_driver(monkeypatch):
    def refused(*_):
        raise RuntimeError("not supported")

    monkeypatch.setitem(sys.modules, "pynvml", nvml(power=refused))
    assert set(Gpus().sample()) == {"gpu_memory_bytes", "gpu_utilisation"}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=refused))
    assert len(Gpus()) == 0 and Gpus().sample() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().sample() == {}


def scrapes(folder):
    import pandas as pd

    return pd.read_parquet(folder / "scrapes.parquet")


def test_a_point_keeps_pages_and_machine_on_one_clock(tmp_path):
    with ScriptedServer() as server:
        _, _, recording = play_point(server, tmp_path, scrape_s=0.2)
    rows = scrapes(tmp_path)
    assert list(rows["t_s"]) == sorted(rows["t_s"])
    assert rows["t_s"].iloc[0] >= recording["clock"]["start_s"]
    assert rows["t_s"].iloc[-1] >= recording["window"]["drained_s"]
    assert rows["running"].notna().sum() == len(rows) - 1  # the last is of the machine alone
    assert (rows["server_rss_bytes"] > 0).all() and (rows["client_rss_bytes"] > 0).all()
    known = rows["server_pss_bytes"].notna()
    assert known.iloc[0] and known.iloc[-1] and known.sum() == 2
    assert rows["gpu_power_w"].isna().all() or (rows["gpu_power_w"].dropna() >= 0).all()


async def test_a_server_without_a_page_leaves_the_machine(tmp_path):
    with ScriptedServer(metrics=False) as server:
        async with session(4) as client:
            scraper = Scraper(client, server.url, period_s=0.05)
            watching = asyncio.create_task(scraper.watch())
            while scraper.samples < 3:
                assert not watching.done()
                await asyncio.sleep(0.01)
            watching.cancel()
        scraper.write(tmp_path)
        asked = server.pages
    rows = scrapes(tmp_path)
    assert len(rows) >= 4 and rows["running"].isna().all()
    assert (rows["host_available_bytes"] > 0).all()
    assert asked == 1

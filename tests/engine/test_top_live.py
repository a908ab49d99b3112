"""`kvtop top` against a live server of the tiny model."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvtop_lib import cli
from kvtop_lib.engine import SERVED_NAME, Server
from kvtop_lib.engine.client import call


@pytest.fixture
def server(servers):
    """A drafting server, four tokens verified per forward, with empty caches."""
    servers["mtp_w4"].flush_cache()
    return servers["mtp_w4"]


def top(monkeypatch, capsys, *args: str) -> dict:
    """What ``kvtop top --once --json`` prints."""
    monkeypatch.setattr(sys, "argv", ["kvtop", "top", *args, "--once", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    return json.loads(capsys.readouterr().out)


def chat(server: Server, i: int, tokens: int = 400) -> int:
    """A long greedy answer; its tokens."""
    body = {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": f"Count from {i}."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    reply = call(f"{server.url}/v1/chat/completions", body, timeout_s=300)
    return reply["usage"]["completion_tokens"]


def test_one_look_at_a_quiet_server(server, monkeypatch, capsys):
    reading = top(monkeypatch, capsys, server.url)
    assert (reading["state"], reading["engine"]) == ("ok", "sglang")
    assert reading["model"] == SERVED_NAME
    assert (reading["running"], reading["queued"]) == (0, 0)
    assert reading["width_tokens"] == 4
    capacity = server.resolved()["max_total_num_tokens"]
    assert reading["kv"]["total_tokens"] == pytest.approx(capacity, abs=1)
    assert reading["kv"]["draft_used_tokens"] == reading["kv"]["used_tokens"]
    assert reading["machine"]["server_rss_bytes"] > 1e8


def test_one_look_at_a_busy_server(server, monkeypatch, capsys):
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(chat, server, i) for i in range(4)]
        readings = []
        while not all(a.done() for a in asked):
            readings.append(top(monkeypatch, capsys, server.url, "--every", "0.5"))
    assert {a.result() for a in asked} == {400}
    busy = [r for r in readings if r["output_tok_s"]]
    assert busy, "no look fell into the answers"
    assert all(1 <= r["accept_len"] <= 4 for r in busy if r["accept_len"])
    assert max(r["running"] for r in readings) <= 4
    if server.iterations_file:
        split = [r["iteration"] for r in busy if r["iteration"]]
        assert split and all(r["recorder"] == "on" for r in busy)
        for found in split:
            total = sum(found["parts_s"].values()) + found["other_s"]
            assert total == pytest.approx(found["iteration_s"])
            assert "verify" in found["parts_s"] or "verify" not in found["modes"]

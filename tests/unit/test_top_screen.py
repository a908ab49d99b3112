"""The screen with textual's pilot, the notebook's panel, and the command against live servers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from scripted_server import ScriptedServer
from test_top import SGLANG, Script, later
from textual.widgets import Sparkline, Static

from kvtop_lib import cli
from kvtop_lib.top import Panel, Watch, source
from kvtop_lib.top.screen import Screen
from kvtop_lib.top.show import History

NEVER_S = 1e6  # looks come from the test's key presses only


def shown(app: Screen, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def look(app: Screen, pilot) -> None:
    await pilot.press("r")
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_the_screen_shows_a_server_its_absence_and_its_return():
    fresh = later(SGLANG, running=1.0)
    fresh = type(fresh)(fresh.engine, fresh.model, {**fresh.values, "realtime_tokens_total": 0.0})
    script = Script(SGLANG, later(SGLANG, realtime_tokens_total=90.0), "no server answers", fresh)
    app = Screen(script.watch({"draft_kv": True, "version": "0.5.23"}), NEVER_S)
    async with app.run_test(size=(100, 30)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "sglang  0.5.23  glm" in shown(app, "title")
        assert (shown(app, "running"), shown(app, "queued")) == ("6", "2")
        assert shown(app, "kv") == shown(app, "draft_kv") == "8,000 of 20,000 tokens (40%)"
        assert shown(app, "iteration") == "recorder off"
        assert not app.query_one("#row-gpu").display  # no GPU, no row
        await look(app, pilot)
        assert shown(app, "output") == "90.0"
        assert list(app.query_one("#spark-running", Sparkline).data) == [0.0, 6.0, 6.0]
        message = app.query_one("#message", Static)
        assert not message.display
        await look(app, pilot)
        assert message.display and shown(app, "message") == "no server answers"
        assert shown(app, "running") == "6"  # the last that was known, greyed
        assert app.query_one("#row-running").styles.opacity == 0.5
        await look(app, pilot)
        assert not message.display and shown(app, "running") == "1"
        assert "restarts seen: 1" in shown(app, "title")


async def test_pause_and_quit():
    script = Script(SGLANG)
    app = Screen(script.watch(), NEVER_S)
    async with app.run_test() as pilot:
        await app.workers.wait_for_complete()
        await pilot.press("p")
        assert "[paused]" in shown(app, "title")
        looks = script.now_s
        app._tick()
        await pilot.pause()
        assert script.now_s == looks
        await pilot.press("p")
        assert "[paused]" not in shown(app, "title")
        await pilot.press("q")
    assert app.return_code == 0


async def test_text_of_a_server_is_never_markup():
    hostile = type(SGLANG)("sglang", "[red]x[/] [@click=app.quit]", SGLANG.values)
    app = Screen(Script(hostile).watch(), NEVER_S)
    async with app.run_test(size=(120, 20)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "[red]x[/] [@click=app.quit]" in shown(app, "title")


def test_the_panel_of_a_notebook():
    panel = Panel("127.0.0.1:1")
    assert "waiting" in panel._repr_html_()
    hostile = type(SGLANG)("sglang", "<script>alert(1)</script>", SGLANG.values)
    watch = Script(hostile, "no <b>server</b>", hostile, hostile).watch()
    panel.take(watch.poll())
    first = panel._repr_html_()
    assert "&lt;script&gt;" in first and "<script>" not in first
    assert "recorder off" in first and "8,000 of 20,000 tokens" in first
    panel.take(watch.poll())
    assert "no &lt;b&gt;server" in panel._repr_html_()
    panel.take(watch.poll()), panel.take(watch.poll())
    assert panel._repr_html_().count("<polyline") >= 3  # lines after the gap


def test_the_panel_follows_a_server_from_a_process_of_its_own():
    class Handle:
        seen = []

        def update(self, panel):
            self.seen.append(panel._repr_html_())

    with ScriptedServer() as server:
        panel = Panel(server.url, period_s=0.1)
        panel._handle = Handle()
        panel.start()
        process = panel._process
        while len(Handle.seen) < 2:
            assert process.poll() is None
            panel._thread.join(0.05)
        panel.stop()
        panel.stop()  # twice is once
    assert process.poll() is not None
    assert "sglang" in Handle.seen[-1] and "running" in Handle.seen[-1]


def kvtop(monkeypatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["kvtop", "top", *args])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_one_look_at_a_server(monkeypatch, capsys):
    with ScriptedServer() as server:
        server.running = 3
        assert kvtop(monkeypatch, server.url, "--once", "--json", "--every", "0.1") == 0
        reading = json.loads(capsys.readouterr().out)
        assert (reading["engine"], reading["model"], reading["running"]) == ("sglang", "m", 3.0)
        assert reading["output_tok_s"] == 0.0 and reading["recorder"] == "off"
        assert kvtop(monkeypatch, server.url, "--once", "--every", "0.1") == 0
        assert "running            3" in capsys.readouterr().out


def test_no_server_and_no_metrics_are_one_sentence(monkeypatch, capsys):
    assert kvtop(monkeypatch, "127.0.0.1:9", "--once") == 1
    error = capsys.readouterr().err
    assert error == "kvtop: no server answers at http://127.0.0.1:9 (Connection refused)\n"
    with ScriptedServer(metrics=False) as server:
        assert kvtop(monkeypatch, server.url, "--once", "--json") == 1
        assert "has no metrics (HTTP 404 for /metrics)" in capsys.readouterr().err


def test_a_page_of_another_program(monkeypatch):
    monkeypatch.setattr(source, "get", lambda url, timeout_s: b"go_goroutines 12\n")
    with pytest.raises(source.NoServer, match="holds no metric of SGLang or vLLM"):
        source.metrics("http://h:1")
    huge = b"sglang:num_running_reqs " + b"9" * 400 + b"\n"
    for bad in (b"sglang:num_running_reqs{ 12\n", huge):
        monkeypatch.setattr(source, "get", lambda url, timeout_s, bad=bad: bad)
        with pytest.raises(source.NoServer, match="cannot be read"):
            source.metrics("http://h:1")
    assert source.facts("http://h:1") == {}


@pytest.mark.parametrize("args", [["nonsense:0"], ["h:1", "--every", "0"], ["h:1"]])
def test_wrong_options_are_one_sentence(monkeypatch, capsys, args):
    assert kvtop(monkeypatch, *args) == 1
    error = capsys.readouterr().err
    assert error.startswith("kvtop: ") and error.count("\n") == 1


def test_the_stream_ends_with_its_reader():
    with ScriptedServer() as server:
        command = [sys.executable, "-m", "kvtop_lib.top", server.url, "0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stream:
            lines = [json.loads(stream.stdout.readline()) for _ in range(2)]
            stream.stdout.close()
            stream.wait(60)
            assert stream.stderr.read() == b""
    assert [line["state"] for line in lines] == ["ok", "ok"]


def test_history_has_a_gap_where_there_was_no_server():
    watch: Watch = Script(SGLANG, "gone").watch()
    history = History()
    history.add(watch.poll()), history.add(watch.poll())
    assert list(history.values["running"]) == [6.0, None]

"""What `kvtop top` derives from pages, iterations and the machine, against scripted truths."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kvtop_lib.replay.pages import Page, parse
from kvtop_lib.top import Watch, source
from kvtop_lib.top.rates import rates, ttft_p50
from kvtop_lib.top.show import History, bars, split, table
from kvtop_lib.top.tail import Tail

PAGES = Path(__file__).parents[1] / "data" / "pages"
SGLANG, VLLM = (parse((PAGES / f"{e}.txt").read_bytes()) for e in ("sglang", "vllm"))
URL = "http://127.0.0.1:1"


def later(page: Page, **grown: float) -> Page:
    """A page on which counters have grown and gauges have become."""
    values = {
        k: page.values.get(k, 0.0) + v if k.endswith("_total") else v for k, v in grown.items()
    }
    return replace(page, values=page.values | values)


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid


class Machine:
    """A machine whose server has a process id and an environment."""

    pid, variables = 7, {}

    def __init__(self, url: str) -> None:
        self.server = [Process(self.pid)]

    def environment(self, name: str) -> str | None:
        return self.variables.get(name)

    def open_file(self, name: str) -> str | None:
        return self.variables.get(name)

    def sample(self) -> dict[str, float]:
        return {"server_rss_bytes": 2e9, "load_1min": 1.5}


class Script:
    """A server whose pages come one per second; a string is a reason not to answer."""

    def __init__(self, *steps: Page | str) -> None:
        self.steps, self.now_s = list(steps), 100.0

    def fetch(self, url: str) -> Page:
        self.now_s += 1.0
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, str):
            raise source.NoServer(step)
        return step

    def watch(self, facts: dict | None = None, **more) -> Watch:
        known = facts or {}
        options = {"machine": Machine, **more}
        return Watch(
            URL, fetch=self.fetch, facts=lambda u: known, clock=lambda: self.now_s, **options
        )


def test_rates_of_vllm_between_two_pages():
    now = later(
        VLLM, generation_tokens_total=500.0, prompt_tokens_total=1000.0, ttft_seconds_total=3.0,
        ttft_requests_total=6.0, spec_verify_calls_total=100.0, accepted_drafts_total=150.0,
        proposed_drafts_total=300.0,
    )  # fmt: skip
    assert rates(VLLM, now, 2.0) == {
        "span_s": 2.0,
        "output_tok_s": 250.0,
        "prompt_tok_s": 500.0,
        "ttft_mean_s": 0.5,
        "accept_len": 2.5,  # 1 + 150 / 100
        "width_tokens": 4.0,  # 1 + 300 / 100
    }


def test_rates_of_sglang_are_of_decoded_tokens():
    found = rates(SGLANG, later(SGLANG, realtime_tokens_total=40.0), 0.5)
    assert found["output_tok_s"] == 80.0 and found["accept_len"] == 2.25
    idle = rates(SGLANG, SGLANG, 1.0)
    assert idle["output_tok_s"] == 0.0 and idle["accept_len"] is None  # the gauge is of the past


def test_one_page_has_no_rates_but_the_servers_own():
    found = rates(SGLANG, SGLANG, 0.0)
    assert found["output_tok_s"] == 310.0 and found["prompt_tok_s"] is None


def test_a_counter_that_was_not_there_began_at_nothing():
    before = Page("sglang", "m", {"running": 1.0})
    now = Page("sglang", "m", {"running": 1.0, "realtime_tokens_total": 30.0})
    assert rates(before, now, 3.0)["output_tok_s"] == 10.0


def test_the_median_first_token_is_interpolated_inside_its_bucket():
    empty = replace(SGLANG, ttft=())
    # 40 requests: the 20th is the 10th of the 20 between 0.1 and 0.2 s
    assert ttft_p50(empty, SGLANG) == pytest.approx(0.15)
    more = replace(SGLANG, ttft=((0.1, 10.0), (0.2, 30.0), (0.4, 44.0), (math.inf, 44.0)))
    assert ttft_p50(SGLANG, more) == pytest.approx(0.3)  # 4 new ones, all above 0.2 s
    slow = replace(SGLANG, ttft=((0.1, 10.0), (0.2, 30.0), (0.4, 40.0), (math.inf, 41.0)))
    assert ttft_p50(SGLANG, slow) == 0.4  # no upper bound
    assert ttft_p50(SGLANG, replace(SGLANG)) is None  # no request between them


def test_a_reading_of_sglang():
    script = Script(SGLANG, later(SGLANG, realtime_tokens_total=200.0, running=7.0))
    watch = script.watch({"version": "0.5", "width_tokens": 4, "draft_kv": True})
    first, second = watch.poll(), watch.poll()
    assert first["state"] == "ok" and first["running"] == 6.0
    assert (second["running"], second["output_tok_s"], second["span_s"]) == (7.0, 200.0, 1.0)
    assert second["kv"] == {
        "total_tokens": 20000.0,
        "used_tokens": 8000.0,
        "cached_tokens": 2000.0,
        "used_share": 0.4,
        "draft_used_tokens": 8000.0,
    }
    assert second["recorder"] == "off" and second["iteration"] is None
    assert second["machine"]["server_rss_bytes"] == 2e9
    json.dumps(second, allow_nan=False)


def test_rates_are_over_the_last_seconds_only():
    steps = [later(SGLANG, realtime_tokens_total=100.0 * i) for i in range(20)]
    script = Script(*steps)
    watch = script.watch()
    for _ in steps:
        reading = watch.poll()
    assert reading["span_s"] == 5.0 and reading["output_tok_s"] == 100.0


def test_a_server_that_goes_away_and_comes_back_anew():
    fresh = replace(SGLANG, values=SGLANG.values | {"realtime_tokens_total": 10.0})
    script = Script(SGLANG, "no server answers", fresh, later(fresh, realtime_tokens_total=50.0))
    watch = script.watch()
    states = [watch.poll() for _ in range(4)]
    assert [s["state"] for s in states] == ["ok", "no server", "ok", "ok"]
    assert states[1]["message"] == "no server answers"
    assert [s["restarts"] for s in states] == [0, 0, 1, 1]
    assert states[3]["output_tok_s"] == 50.0  # nothing of the old server's counters


def test_a_restart_between_two_looks():
    fresh = replace(SGLANG, values={"running": 0.0})
    watch = Script(SGLANG, fresh).watch()
    watch.poll()
    reading = watch.poll()
    assert reading["restarts"] == 1 and reading["output_tok_s"] is None


def test_a_server_that_was_only_slow_has_not_been_restarted():
    watch = Script(SGLANG, "timed out", later(SGLANG, realtime_tokens_total=100.0)).watch()
    watch.poll(), watch.poll()
    reading = watch.poll()
    assert reading["restarts"] == 0
    assert reading["output_tok_s"] == 50.0  # over the two seconds


def test_another_process_is_a_restart_whatever_its_counters():
    class Other(Machine):
        pid = 8

    watch = Script(SGLANG, "gone", later(SGLANG, realtime_tokens_total=9.0)).watch()
    watch.poll(), watch.poll()
    watch.machine = Other
    assert watch.poll()["restarts"] == 1


HEADER = {"stream": 1, "clock": "monotonic"}


def iteration(i: int, t_s: float, dur_s: float, **more) -> dict:
    return {"i": i, "t_s": t_s, "dur_s": dur_s, "mode": "verify", **more}


def test_the_split_of_the_last_iterations(tmp_path):
    file = tmp_path / "iterations.jsonl"
    tail = Tail(file)
    assert tail.read() is False
    parts = {"draft": 0.01, "verify": 0.02}
    rows = [
        HEADER,
        iteration(0, 10.0, 9.0, parts={"verify": 9.0}),  # long ago
        iteration(1, 97.0, 0.04, parts=parts, width=4, accepted=[3, 1]),
        {"request": 1, "id": "x"},
        iteration(2, 98.0, 0.06, parts=parts, width=2, accepted=[1]),
        {"until_s": 99.0, "dropped": 0},
    ]
    lines = [json.dumps(r) + "\n" for r in rows]
    file.write_text("".join(lines[:3]) + lines[4][:20])
    assert tail.read() and len(tail.records) == 1  # the one from long ago is dropped
    with file.open("a") as f:
        f.write(lines[4][20:] + lines[5])
    assert tail.read()
    found = tail.summary(100.0, 5.0)
    assert found["iterations"] == 2 and found["iteration_s"] == pytest.approx(0.05)
    assert found["parts_s"] == pytest.approx({"draft": 0.01, "verify": 0.02})
    assert found["other_s"] == pytest.approx(0.02)
    assert found["accept_len"] == pytest.approx(1 + 5 / 3)
    assert found["width_tokens"] == pytest.approx(10 / 3)  # 4, 4 and 2
    assert tail.summary(200.0, 5.0) is None
    assert split(found) == "verify 40% · draft 20% · rest 40%"


def test_a_stream_that_is_replaced_or_broken(tmp_path):
    file = tmp_path / "iterations.jsonl"
    file.write_text(json.dumps(HEADER) + "\n" + json.dumps(iteration(0, 1.0, 0.1)) + "\n")
    tail = Tail(file)
    assert tail.read() and len(tail.records) == 1
    file.unlink()
    assert tail.read() is False
    file.write_text(json.dumps(HEADER) + "\nnot json\n[1]\n" + '{"t_s": "soon"}\n')
    assert tail.read() and not tail.records


def test_a_long_stream_is_read_from_its_end(tmp_path):
    file = tmp_path / "iterations.jsonl"
    rows = [json.dumps(iteration(i, 1.0 + i / 1000, 0.001)) for i in range(10_000)]
    file.write_text("\n".join([json.dumps(HEADER), *rows]) + "\n")
    tail = Tail(file)
    assert tail.read() and tail.header == HEADER
    assert tail.records[-1]["i"] == 9999 and len(tail.records) < 10_000


def test_a_server_whose_recorder_is_on(tmp_path):
    file = tmp_path / "iterations.jsonl"
    row = iteration(0, 101.5, 0.03, parts={"verify": 0.03}, width=4, accepted=[2])
    file.write_text(json.dumps(HEADER) + "\n" + json.dumps(row) + "\n")

    class Recorded(Machine):
        variables = {"KVTOP_RECORD": str(file)}

    script = Script(SGLANG, later(SGLANG, realtime_tokens_total=1.0))
    watch = script.watch(machine=Recorded)
    watch.poll()
    reading = watch.poll()
    assert reading["recorder"] == "on" and reading["iteration"]["iterations"] == 1
    assert reading["accept_len"] == 3.0  # the iterations' own, not the gauge
    assert "verify 100%" in table(reading)


def test_spark_lines():
    assert bars([0, 1, 2, 4, None, 8]) == "▁▁▂▄ █"
    assert bars([None]) == " " and bars([]) == ""


def test_the_text_of_a_look():
    watch = Script(SGLANG).watch({"draft_kv": True, "version": "0.5.23"})
    reading = watch.poll()
    history = History()
    history.add(reading)
    text = table(reading, history)
    for part in ("sglang  0.5.23  glm", "running", "8,000 of 20,000 tokens (40%)", "recorder off"):
        assert part in text
    assert "GPU" not in text  # rows that no such server has


@pytest.mark.parametrize(
    ("typed", "url"),
    [("host:30000", "http://host:30000"), ("https://h:1/metrics", "https://h:1")],
)
def test_addresses(typed, url):
    assert source.address(typed) == url


@pytest.mark.parametrize(
    ("most", "timeout_s", "said"),
    [(source.MOST_BYTES, 0.5, "does not end within 0.5 s"), (10, 600.0, "is larger than 10 bytes")],
)
def test_an_answer_without_an_end_is_given_up(monkeypatch, most, timeout_s, said):
    monkeypatch.setattr(source, "MOST_BYTES", most)
    over, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def drip():
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(2000):  # an end after all, for a reader that knows no limit
                peer.sendall(b"# x\n")
                if over.wait(0.01):
                    break

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    with listener, pytest.raises(source.NoServer, match=said):
        source.get(url, timeout_s)
    over.set()
    thread.join(10)


def test_an_answer_that_is_cut_is_no_page():
    listener = socket.create_server(("127.0.0.1", 0))

    def cut():
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            page = b"sglang:num_running_reqs 1\n"
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + page)

    thread = threading.Thread(target=cut, daemon=True)
    thread.start()
    with listener, pytest.raises(source.NoServer, match="was cut after 26 bytes"):
        source.metrics(f"http://127.0.0.1:{listener.getsockname()[1]}")
    thread.join(10)

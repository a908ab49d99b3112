"""What is watched beside the traffic: the server's page, the client's lag, the progress line."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace

import pandas as pd
import pytest

from kvtop_lib.replay import Plan, pages, scrape
from kvtop_lib.replay.health import LoopLag, no_collection
from kvtop_lib.replay.progress import Progress
from kvtop_lib.replay.record import Ended

PAGE = b"""# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="kvtop"} 120.0
sglang:generation_tokens_total{is_streaming="false",model_name="kvtop"} 8.0
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 900.0
sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 110.0
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 3.0
sglang:num_running_reqs{tp_rank="1"} 3.0
sglang:num_running_reqs_offline_batch{tp_rank="0"} 7.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{tp_rank="0"} 0.0
# TYPE sglang:kv_used_tokens gauge
sglang:kv_used_tokens{tp_rank="0"} 512.0
# TYPE sglang:e2e_request_latency_seconds histogram
sglang:e2e_request_latency_seconds_bucket{le="0.1"} 5.0
"""


def test_a_page_of_metrics():
    assert scrape.read(PAGE) == {
        "generation_tokens_total": 128.0,  # summed over its labels
        "realtime_tokens_total": 110.0,  # decoded tokens only
        "running": 3.0,  # ranks say the same thing twice
        "queued": 0.0,
        "kv_used_tokens": 512.0,
    }
    assert scrape.read(b"") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"sglang:num_running_reqs{ 3.0",
        b"sglang:num_running_reqs three",
        b"sglang:num_running_reqs 1" + b"0" * 400,
        b'sglang:num_running_reqs{tp_rank="0"',
        b'sglang:time_to_first_token_seconds_bucket{le="soon"} 5',
    ],
)
def test_a_malformed_page_is_an_unknown_sample_and_harms_no_other(tmp_path, line):
    scraper = scrape.Scraper(None, "", 1.0)
    kept = [pages.keep(p, ttft=True) for p in (PAGE, PAGE + line + b"\n", PAGE)]
    scraper._pages = [(float(t), page, {"host_cpu_s": 9.0}) for t, page in enumerate(kept)]
    scraper.write(tmp_path)
    rows = pd.read_parquet(tmp_path / "scrapes.parquet")
    assert list(rows.t_s) == [0.0, 1.0, 2.0] and set(rows.host_cpu_s) == {9.0}
    assert list(rows.running.isna()) == [False, True, False] and rows.running[0] == 3.0


def test_counters_of_a_malformed_page_are_unknown():
    class Serves:
        async def get(self, url, timeout_s):
            return 200, b"sglang:generation_tokens_total{ 1\n"

    assert asyncio.run(scrape.counters(Serves(), "http://192.0.2.7:30000")) == {}


def test_lag_is_seen_when_something_blocks_the_loop():
    async def main() -> dict:
        lag = LoopLag()
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.1)
        time.sleep(0.25)  # noqa: ASYNC251 - the block that is to be seen
        await asyncio.sleep(0.1)
        watch.cancel()
        return lag.summary(0.0, float("inf"))

    found = asyncio.run(main())
    assert found["loop_lag_max_s"] >= 0.2
    assert found["loop_lag_p50_s"] < found["loop_lag_max_s"]


def test_lag_outside_the_window_does_not_count():
    lag = LoopLag([(1.0, 9.0), (5.0, 0.001), (6.0, 0.003), (10.0, 9.0)])
    found = lag.summary(5.0, 10.0)
    assert found["loop_lag_max_s"] == 0.003 and found["loop_lag_p50_s"] == pytest.approx(0.002)
    assert set(lag.summary(20.0, 30.0).values()) == {None}


def _running(since_s: float, tokens: int) -> SimpleNamespace:
    plan = Plan(burn_in_s=10, warmup_s=10, window_s=100, drain_s=5, timeout_s=5)
    start_s = time.monotonic() - since_s
    return SimpleNamespace(plan=plan, start_s=start_s, in_flight=7, tokens=tokens)


def test_the_progress_line_says_how_it_is_going():
    point, progress = _running(30, tokens=900), Progress("mtp c8", "plain")
    for ok, n, ttft_s in ((True, 80, 0.1), (False, 20, 0.3), (False, 0, None), (True, 5, 0.2)):
        progress.ended(Ended(ok, False, n, ttft_s, None))
    progress._seen.append((time.monotonic() - 5.0, 0))  # as if seen five seconds ago
    line = progress.line(point)
    for part in ("mtp c8", "window", "in flight   7", "TTFT p50 0.200 s", "ended    4", "failed 2",
                 "left 90 s"):  # fmt: skip
        assert part in line
    rate = float(line.split(" tok/s")[0].split()[-1])
    assert 0 < rate <= 1005 / 5.0  # 105 that ended and 900 in flight, in 5 s or, late, in more


def test_the_first_line_tells_the_rate_since_the_start():
    line = Progress("a", "plain").line(_running(15.0, tokens=300))
    rate = float(line.split(" tok/s")[0].split()[-1])
    assert 1 < rate <= 20.0  # 300 tokens in 15 s or, late, in more


def test_what_the_progress_line_needs_is_read_while_streams_run():
    progress = Progress("a", "plain")
    assert " 0.0 tok/s" in progress.line(_running(0.0, tokens=0))
    assert "TTFT p50 -" in progress.line(_running(0.0, tokens=0))


@pytest.mark.parametrize("said", ["plain", "off", "live"])
def test_the_environment_chooses_the_progress_display(monkeypatch, said):
    monkeypatch.setenv("KVTOP_PROGRESS", said)
    assert Progress("a")._mode == said
    assert Progress("a", "off")._mode == "off"


def test_no_garbage_is_collected_while_a_point_runs():
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled() and gc.get_freeze_count() > 0
    assert gc.isenabled() and gc.get_freeze_count() == 0

"""Every formula against a table worked out by hand, and against slow references."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop_lib.metrics import METRICS, derive, percentile, table
from kvtop_lib.metrics.latency import arrivals, gaps, latencies, per_request
from kvtop_lib.metrics.throughput import flow, goodput, mean_between, occupancy, window_tokens
from kvtop_lib.paths import repo_root
from kvtop_lib.step import derive_all
from kvtop_lib.store import METRIC_KEYS, Run

# request: chunks as (received, cumulative tokens); window [10, 20)
CHUNKS = {
    0: [(9.0, 1), (10.0, 3), (12.0, 7)],  # sent in warm-up: 6 of its tokens arrive inside
    1: [(11.0, 4), (11.5, 5), (12.5, 9)],  # first chunk bundled: 4 tokens
    2: [(15.0, 1), (19.0, 3), (20.0, 5), (21.0, 6)],  # ends in the drain
    3: [(16.0, 2)],  # all tokens at once
    4: [(17.0, 1), (18.0, 2)],  # breaks after two tokens
    # 5: failed without a token
}
REQUESTS = pd.DataFrame(
    {
        "request": [0, 1, 2, 3, 4, 5],
        "phase": ["warmup", *["window"] * 5],
        "intended_s": [8.0, 10.0, 14.0, 13.5, 16.0, 16.0],
        "sent_s": [8.0, 10.5, 14.0, 15.5, 16.0, 16.5],
        "end_s": [12.0, 12.5, 21.0, 16.0, 18.5, 17.0],
        "first_token_s": [9.0, 11.0, 15.0, 16.0, 17.0, None],
        "last_token_s": [12.0, 12.5, 21.0, 16.0, 18.0, None],
        "output_tokens": [7, 9, 6, 2, 2, 0],
        "status": ["ok", "ok", "ok", "ok", "stream_error", "http_error"],
        "verify_steps": [None, 4, None, None, None, None],
    }
)


def _chunks(chunks: dict) -> pd.DataFrame:
    rows = [(r, t, n) for r, many in chunks.items() for t, n in many]
    return pd.DataFrame(rows, columns=["request", "recv_s", "tokens_total"])


@pytest.fixture
def arrived() -> pd.DataFrame:
    return arrivals(_chunks(CHUNKS))


@pytest.fixture
def window(arrived) -> pd.DataFrame:
    rows = per_request(REQUESTS, arrived)
    return rows[rows.phase == "window"]


def test_throughput_counts_tokens_by_arrival(arrived):
    # request 0: 2 + 4; 1: 4 + 1 + 4; 2: 1 + 2 (20.0 is outside); 3: 2; 4: 1 + 1
    assert window_tokens(arrived, 10.0, 20.0) == 6 + 9 + 3 + 2 + 2
    # neither the finished requests' tokens nor the number of chunks
    finished = REQUESTS[REQUESTS.end_s.between(10, 20)].output_tokens.sum()
    assert finished != 22 and len(arrived) != 22


def test_per_request_latencies(window):
    w = window.set_index("request")
    assert list(w.ttft_s) == [0.5, 1.0, 0.5, 1.0, math.inf]
    # 1: (12.5 - 11) / (9 - 4), the bundled first chunk on neither side; 2: 6 s / 5
    assert w.tpot_s[1] == pytest.approx(1.5 / 5) and w.tpot_s[2] == pytest.approx(6 / 5)
    assert math.isnan(w.tpot_s[3])  # no second arrival: no TPOT
    assert w.tpot_s[4] == math.inf  # broke: not a fast request
    assert list(w.e2e_s) == [2.0, 7.0, 0.5, math.inf, math.inf]
    # 1: 8 tokens after the first in 4 steps: two per step; 2: no drafting, one per step
    assert w.iteration_s[1] == pytest.approx(1.5 / 5 * 2) and w.iteration_s[2] == w.tpot_s[2]
    assert w.iteration_s[[3, 4, 5]].isna().all()


def test_latency_from_the_intended_time_holds_what_the_client_was_late(window):
    w = window.set_index("request")
    # request 1 was 0.5 s late, 3 was 2 s late, 5 was late and failed
    assert list(w.ttft_intended_s) == [1.0, 1.0, 2.5, 1.0, math.inf]
    assert list(w.e2e_intended_s) == [2.5, 7.0, 2.5, math.inf, math.inf]
    m = latencies(window)
    assert m["ttft_intended_s"]["p50"] == 1.0 and m["e2e_intended_s"]["p50"] == 7.0


def test_the_flow_of_requests_that_were_asked_for_and_that_ended(window):
    f = flow(REQUESTS, window, 10.0, 20.0)
    # five requests of the window; 0, 1 and 3 ended ok inside, 2 in the drain
    assert (f["asked_rate"], f["ended_rate"]) == (0.5, 0.3)
    # 0.5, 0, 2, 0 and 0.5 s
    assert f["send_delay_s"] == {"p50": 0.5, "p99": pytest.approx(1.94), "max": 2.0}


def _point(tmp_path, labels=None, **columns) -> dict:
    """A derived point of the table's requests, with more columns."""
    none = {"matches_recorded": None, "uncounted_chunks": 0, "error": None, "turn": 0, "lane": 0}
    more = {"session": list("abcdef"), "prompt_tokens": 9, "cached_tokens": 0}
    drafts = {"accepted_hist": None, "proposed_drafts": 0, "expected_output_tokens": 9}
    r = REQUESTS.assign(**none, **more, **drafts, **columns)
    r.to_parquet(tmp_path / "requests.parquet")
    _chunks(CHUNKS).to_parquet(tmp_path / "chunks.parquet")
    names = "t_s running queued kv_used_tokens kv_available_tokens kv_evictable_tokens".split()
    pd.DataFrame({n: pd.Series(dtype=float) for n in names}).to_parquet(
        tmp_path / "scrapes.parquet"
    )
    facts = {
        "window": {"w0_s": 10.0, "w1_s": 20.0, "drained_s": 22.0}, "clock": {"start_s": 8.0},
        "plan": {"max_output_tokens": 9}, "counters": {"before": {}, "after": {}}, "c": None,
        "rate": 0.5, "load": "r0.50", "client": {}, "outcome": "complete", "reason": "",
        "started_utc": "t", "sessions": {}, "shape": {"loop": "open", "arrivals": "poisson"},
        **(labels or {}),
    }  # fmt: skip
    (tmp_path / "recording.json").write_text(json.dumps(facts))
    return derive(tmp_path)


def test_requests_drawn_to_be_aborted_are_counted_and_judge_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtop_lib.metrics.audits.MIN_REQUESTS", 1)
    monkeypatch.setattr("kvtop_lib.metrics.audits.TREND_SHARE", 9)
    # 3 was drawn and ended before its abort, 4 and 5 were aborted
    drawn = [None, None, None, 1.5, 2.5, 0.5]
    status = ["ok", "ok", "ok", "ok", "cancelled", "cancelled"]
    point = _point(tmp_path, cancel_after_s=drawn, status=status)
    assert point["status"] == "ok", point["reason"]
    assert point["counts"]["cancelled"] == 2 and point["counts"]["ok"] == 3
    assert point["aborted_on_purpose"] == 3 and point["rate"] == 0.5 and point["c"] is None
    # requests 1 and 2 alone: no infinity
    assert point["ttft_s"] == {"p50": 0.75, "p90": pytest.approx(0.95), "p99": pytest.approx(0.995)}
    assert point["e2e_s"]["p99"] == pytest.approx(6.95)
    # every token that arrived, by whomever
    assert point["output_tokens_window"] == 22 and point["asked_rate"] == 0.5
    again = derive(tmp_path, targets={"ttft_s": 0.9})["goodput"]
    assert (again["requests_s"], again["attainment"]) == (0.1, 0.5)


def test_attainment_of_the_profile_s_targets_is_stored_with_the_point(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtop_lib.metrics.audits.MIN_REQUESTS", 1)
    monkeypatch.setattr("kvtop_lib.metrics.audits.TREND_SHARE", 9)
    run = Run(tmp_path)
    labels = {"arm": "a", "block": 1, "workload": "w", "attempt": 1}
    folder = run.point_dir("a", 1, "w", "r0.50")
    folder.mkdir(parents=True)
    run.append_result(point := _point(folder, labels))
    assert point["status"] == "ok" and "goodput" not in point
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "derive.key").write_text("k")
    targets = {"ttft_s": 0.9, "e2e_s": 7.0}
    derive_all(SimpleNamespace(targets=targets), tmp_path)
    # of five requests 1 and 3 meet both, 2 the second alone; 4 and 5 failed
    stored = json.loads((folder / "point.json").read_text())["goodput"]
    assert stored["attainment"] == 0.4
    assert stored["attainment_by_target"] == {"ttft_s": 0.4, "e2e_s": 0.6}
    first, second = run.lines()
    assert "goodput" not in first and second["goodput"] == stored
    (row,) = run.results().to_dict("records")
    assert row["goodput_attainment_by_target_e2e_s"] == 0.6
    derive_all(SimpleNamespace(targets=targets), tmp_path)
    assert len(run.lines()) == 2  # nothing has changed


def test_a_point_whose_load_was_to_be_aborted_altogether_has_no_number(tmp_path):
    point = _point(tmp_path, cancel_after_s=[1.0] * 6)
    assert point["status"] == "failed" and "ttft_s" not in point


def test_percentiles_keep_failures_in(window):
    m = latencies(window)
    assert m["ttft_s"] == {"p50": 1.0, "p90": math.inf, "p99": math.inf}
    assert m["e2e_s"]["p50"] == 7.0 and m["e2e_s"]["p90"] == math.inf
    # TPOT 0.3, 1.2 and two that never ended
    assert m["tpot_s"]["p50"] == math.inf
    assert m["decode_tok_s"]["p50"] == pytest.approx((0.0 + 1 / 1.2) / 2)
    # 9 / 2, 6 / 7, 2 / 0.5, 0, 0
    assert m["request_tok_s"]["p50"] == pytest.approx(6 / 7)


def test_itl_is_per_token_and_weighted_by_tokens(arrived):
    g = gaps(arrived, 10.0, 20.0)
    # inside: request 0: 1 s / 2 tokens, 2 / 4; 1: 0.5 / 1, 1 / 4; 2: 4 / 2; 4: 1 / 1
    itl = [0.5] * 2 + [0.5] * 4 + [0.5] + [0.25] * 4 + [2.0] * 2 + [1.0]
    assert g["itl_s"]["p50"] == pytest.approx(np.percentile(itl, 50))
    assert g["itl_s"]["p99"] == pytest.approx(np.percentile(itl, 99))
    assert g["chunk_gap_s"]["p50"] == pytest.approx(np.percentile([1, 2, 0.5, 1, 4, 1], 50))
    assert g["tokens_per_chunk"] == pytest.approx((2 + 4 + 1 + 4 + 2 + 1) / 6)


def test_drafting_does_not_worsen_itl_because_chunks_carry_more_tokens():
    plain = arrivals(_chunks({0: [(float(i), i + 1) for i in range(10)]}))
    drafted = arrivals(_chunks({0: [(2.0 * i, 2 * i + 1) for i in range(5)]}))
    a, b = (gaps(x, 0.0, 10.0)["itl_s"]["p50"] for x in (plain, drafted))
    assert a == b == 1.0


def test_a_bundled_first_chunk_does_not_inflate_the_decode_rate():
    bundled = per_request(REQUESTS.iloc[[1]], arrivals(_chunks({1: [(11.0, 50), (12.0, 51)]})))
    assert latencies(bundled)["decode_tok_s"]["p50"] == pytest.approx(1.0)


def test_events_read_together_are_one_arrival():
    a = arrivals(_chunks({0: [(1.0, 1), (2.0, 2), (2.0, 5), (4.0, 6)]}))
    assert list(a.gain) == [1, 4, 1] and list(a.gap_s.dropna()) == [1.0, 2.0]


def test_means_over_the_window(arrived):
    scrapes = pd.DataFrame(
        {
            "t_s": [9.0, 10.0, 15.0, 20.0],
            "running": [99.0, 2.0, 3.0, 99.0],
            "queued": [9.0, 0.0, 1.0, 9.0],
            "kv_used_tokens": [0.0, 10.0, 30.0, 0.0],
            "kv_available_tokens": [0.0, 80.0, 60.0, 0.0],
            "kv_evictable_tokens": [0.0, 10.0, 10.0, 0.0],
        }
    )
    o = occupancy(REQUESTS, scrapes, 10.0, 20.0)
    # inside: 10-12, 10.5-12.5, 14-20, 15.5-16, 16-18.5, 16.5-17
    assert o["in_flight_mean"] == pytest.approx((2 + 2 + 6 + 0.5 + 2.5 + 0.5) / 10)
    # first to last token inside: 10-12, 11-12.5, 15-20, 0, 17-18
    assert o["decoding_mean"] == pytest.approx((2 + 1.5 + 5 + 0 + 1) / 10)
    assert (o["active_mean"], o["queued_mean"], o["active_source"]) == (2.5, 0.5, "server")
    assert o["kv_use"] == {"mean": pytest.approx(0.2), "max": pytest.approx(0.3)}
    without = occupancy(REQUESTS, scrapes.iloc[:0], 10.0, 20.0)
    assert (without["active_mean"], without["queued_mean"]) == (o["in_flight_mean"], None)
    assert without["active_source"] == "client" and without["kv_use"] is None


def test_goodput_counts_requests_and_their_tokens(window):
    g = goodput(window, {"ttft_s": 0.9, "e2e_s": 3.0}, 10.0)
    # requests 1 and 3 meet both; 2 is too slow, 4 and 5 failed
    assert (g["requests_s"], g["tok_s"], g["attainment"]) == (0.2, 1.1, 2 / 5)
    assert goodput(window, {"tpot_s": 0.5}, 10.0)["requests_s"] == 0.2
    # TTFT: 1 and 3; end to end: 1, 2 and 3; TPOT: 3 alone, whose tokens came at once
    g = goodput(window, {"ttft_s": 0.9, "e2e_s": 7.0, "tpot_s": 0.1}, 10.0)
    assert g["attainment_by_target"] == {"ttft_s": 2 / 5, "e2e_s": 3 / 5, "tpot_s": 1 / 5}
    assert (g["requests_s"], g["tok_s"], g["attainment"]) == (0.1, 0.2, 1 / 5)
    assert goodput(window.iloc[:0], {"ttft_s": 1.0}, 10.0)["attainment_by_target"] == {
        "ttft_s": None
    }


finite = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(finite, st.floats(0, 100))
def test_percentile_is_numpys_when_nothing_is_censored(values, q):
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9)


@given(finite, st.integers(0, 20), st.sampled_from([50, 90, 99]))
def test_a_censored_value_acts_like_one_that_is_larger_than_any_limit(values, censored, q):
    p = percentile([*values, *[math.inf] * censored], q)
    huge = float(np.percentile([*values, *[1e30] * censored], q))
    assert (p == math.inf) if huge > 1e12 else (p == pytest.approx(huge, rel=1e-6, abs=1e-3))


def test_percentile_of_nothing_is_none():
    assert percentile([], 50) is None


intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), min_size=1, max_size=12
)


@given(intervals)
def test_time_average_equals_counting_at_every_instant(spans):
    start, end = (pd.Series(x, dtype=float) for x in zip(*spans, strict=True))
    instants = np.arange(10, 20) + 0.5
    slow = np.mean([sum(a <= t < b for a, b in spans) for t in instants])
    assert mean_between(start, end, 10.0, 20.0) == pytest.approx(slow)


def test_the_page_of_metrics_is_current():
    page = repo_root() / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == table.markdown(), "run python -m kvtop_lib.metrics"


def test_every_metric_of_a_result_has_one_row():
    keys = [m.key for m in METRICS]
    assert len(keys) == len(set(keys))
    assert METRIC_KEYS <= set(keys)

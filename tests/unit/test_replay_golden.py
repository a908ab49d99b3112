"""From bytes and stamps to throughput, exactly, on a schedule that is known to the byte."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from kvtop_lib.metrics.latency import arrivals, per_request
from kvtop_lib.metrics.throughput import window_tokens
from kvtop_lib.replay import record
from kvtop_lib.replay.reply import Raw, parse

W0, W1 = 10.0, 20.0
STOP = {"id": "r", "choices": [{"delta": {}, "finish_reason": "stop"}]}


def _event(text: str, total: int) -> dict:
    usage = {"prompt_tokens": 7, "completion_tokens": total}
    return {"id": "r", "choices": [{"delta": {"content": text}}], "usage": usage}


def _answer(*arrived: tuple[float, int], sent_s: float, end_s: float, whole: bool = True) -> Raw:
    """A stream whose reads brought so many tokens at such times; a bundle is one event."""
    raw, total = Raw(sent_s=sent_s, end_s=end_s), 0
    for at, n in arrived:
        total += n
        raw.stamps.append(at)
        raw.buffers.append(b"data: " + json.dumps(_event(f"{n} ", total)).encode() + b"\n\n")
    if whole:
        raw.stamps.append(end_s)
        raw.buffers.append(b"data: " + json.dumps(STOP).encode() + b"\n\ndata: [DONE]\n\n")
    else:
        raw.failure = ("truncated", "the stream was cut: reset", "cut")
    return raw


RAWS = [
    _answer((9.0, 3), (10.0, 2), (12.5, 4), sent_s=8.0, end_s=12.5),  # 2 + 4 tokens inside
    _answer((11.0, 5), (19.999, 1), sent_s=10.5, end_s=19.999, whole=False),  # 5 + 1
    _answer((19.0, 2), (20.0, 3), sent_s=18.0, end_s=20.5),  # 2; at w1 is outside
    Raw(sent_s=15.0, end_s=15.1, failure=("http_error", "HTTP 503: busy", "http_5xx")),
]
EXPECTED_TEXT = ["3 2 4 ", "5 1 ", "2 4 ", ""]  # the third differs from the recording


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> tuple[pd.DataFrame, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("point")
    records = [
        record.Record(
            request=i, lane=0, session=f"s{i}", turn=0, phase="window" if i else "warmup",
            intended_s=raw.sent_s, raw=raw, reply=parse(raw), expected_output=EXPECTED_TEXT[i],
            expected_output_tokens=None,
        )
        for i, raw in enumerate(RAWS)
    ]  # fmt: skip
    record.write(list(reversed(records)), folder)
    return tuple(pd.read_parquet(folder / f"{t}.parquet") for t in ("requests", "chunks"))


def test_statuses_counts_and_times(tables):
    requests, chunks = tables
    assert list(requests.request) == [0, 1, 2, 3]
    assert list(requests.status) == ["ok", "truncated", "ok", "http_error"]
    assert list(requests.failure.fillna("")) == ["", "cut", "", "http_5xx"]
    assert list(requests.output_tokens) == [9, 6, 5, 0]
    first = requests.first_token_s
    assert list(first[:3]) == [9.0, 11.0, 19.0] and np.isnan(first[3])
    assert list(requests.last_token_s[:3]) == [12.5, 19.999, 20.0]
    assert chunks.values.tolist() == [
        [0, 9.0, 3], [0, 10.0, 5], [0, 12.5, 9],
        [1, 11.0, 5], [1, 19.999, 6],
        [2, 19.0, 2], [2, 20.0, 5],
    ]  # fmt: skip


def test_window_throughput_is_exact(tables):
    tokens = window_tokens(arrivals(tables[1]), W0, W1)
    assert tokens == (2 + 4) + (5 + 1) + 2
    assert tokens / (W1 - W0) == 1.4


def test_latencies_are_those_of_the_schedule(tables):
    requests, chunks = tables
    r = per_request(requests, arrivals(chunks))
    assert list(r.ttft_s) == [1.0, 0.5, 1.0, np.inf]
    assert r.tpot_s[0] == (12.5 - 9.0) / (9 - 3)  # the first bundle counts on neither side
    assert r.tpot_s[1] == np.inf  # it did not end ok
    assert r.tpot_s[2] == 1.0 / 3


def test_texts_are_compared_by_hash_and_not_kept(tables):
    requests, _ = tables
    assert bool(requests.matches_recorded[0])
    assert pd.isna(requests.matches_recorded[1])  # cut: nothing can be said
    assert not requests.matches_recorded[2]
    assert requests.output_sha256[0] == hashlib.sha256(b"3 2 4 ").hexdigest()
    assert all(not raw.buffers and raw.reader is None for raw in RAWS)

"""One point whose every check passes by hand-made truth; each corruption fails one check only."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvtop_lib.engine.iterations_stream import SCHEMA as ITERATIONS
from kvtop_lib.metrics import Recording, derive, recorded
from kvtop_lib.metrics.point import check
from kvtop_lib.replay.record import CHUNKS, REQUESTS
from kvtop_lib.replay.scrape import SCHEMA as SCRAPES
from kvtop_lib.store import read_json, write_json

TOKENS, STEP_S = 20, 0.1  # of a request, and between two of them
KINDS = {"requests": REQUESTS, "chunks": CHUNKS, "scrapes": SCRAPES, "iterations": ITERATIONS}


def requests() -> list[dict]:
    """Two lanes, six requests each, back to back from 0 s to 12 s; sessions of two turns."""
    rows = []
    for k in range(6):
        for lane in range(2):
            turn, sent = k % 2, 2.0 * k
            rows.append({
                "request": len(rows), "lane": lane, "session": f"s{lane}-{k // 2}", "turn": turn,
                "phase": "window" if 1 <= sent < 11 else "warmup", "status": "ok",
                "intended_s": sent, "sent_s": sent, "first_token_s": sent + STEP_S,
                "last_token_s": sent + 2.0, "end_s": sent + 2.0, "prompt_tokens": 100 + 30 * turn,
                "cached_tokens": 110 * turn, "output_tokens": TOKENS, "uncounted_chunks": 0,
                "expected_output_tokens": TOKENS, "finish_reason": "length",
            })  # fmt: skip
    return rows


def chunks() -> list[dict]:
    return [
        {"request": r["request"], "recv_s": r["sent_s"] + i * STEP_S, "tokens_total": i}
        for r in requests()
        for i in range(1, TOKENS + 1)
    ]


def iterations() -> list[dict]:
    """Ten a second, both lanes in each; every twentieth prefills both."""
    return [
        {
            "i": j, "t_s": j * STEP_S, "dur_s": STEP_S, "mode": "decode" if j % 20 else "prefill",
            "bs": 2, "running": 2, "queued": 0, "committed_tokens": 2,
        }
        for j in range(120)
    ]  # fmt: skip


def scrapes() -> list[dict]:
    """Two cores: of every two seconds the server has 1.5, the client 0.1, nobody 0.38."""
    return [
        {
            "t_s": 0.55 + j, "running": 2.0, "queued": 0.0, "host_cpu_s": 900 + 2.0 * j,
            "host_idle_s": 300 + 0.38 * j, "host_steal_s": 5.0,
            "server_cpu_s": 40 + 1.5 * j, "client_cpu_s": 0.1 * j,
        }
        for j in range(11)
    ]  # fmt: skip


def facts() -> dict:
    names = ("generation_tokens_total", "request_seconds_total")
    return {
        "schema": 1, "run": "r", "arm": "a", "block": 1, "workload": "w", "load": "c2", "c": 2,
        "attempt": 1, "outcome": "complete", "reason": "", "started_utc": "2026-01-01T00:00:00Z",
        "plan": {"max_output_tokens": 64}, "clock": {"start_s": 0.0, "wall_offset_s": 0.0},
        "window": {"w0_s": 1.0, "w1_s": 11.0, "drained_s": 12.0}, "sessions": {},
        "counters": {
            "before": dict(zip(names, (1000.0, 50.0), strict=True)),
            "after": dict(zip(names, (1000.0 + 12 * TOKENS, 50.0 + 24.0), strict=True)),
        },
        "client": {"loop_lag_p99_s": 0.001}, "page_tokens": 1,
    }  # fmt: skip


@pytest.fixture
def point(tmp_path):
    """Folder of the point."""
    write_json(tmp_path / "recording.json", facts())
    for name, rows in (
        ("requests", requests()),
        ("chunks", chunks()),
        ("scrapes", scrapes()),
        ("iterations", iterations()),
    ):
        write(tmp_path, name, pd.DataFrame(rows))
    return tmp_path


def write(folder, name, frame, **meta):
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    table = pa.Table.from_pylist(rows, schema=KINDS[name])
    if name == "iterations":
        meta = {"complete": True, "kv_tokens": 1000, **meta}
        table = table.replace_schema_metadata({"kvtop": json.dumps(meta)})
    pq.write_table(table, folder / f"{name}.parquet")


def change(folder, name, column, where, value):
    frame = pq.read_table(folder / f"{name}.parquet").to_pandas()
    rows = frame.eval(where) if where else slice(None)
    frame.loc[rows, column] = value(frame.loc[rows, column]) if callable(value) else value
    write(folder, name, frame)


def change_facts(folder, *path, value):
    found = facts()
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_json(folder / "recording.json", found)


def test_every_check_of_a_true_record_passes(point):
    found = derive(point)
    assert found["status"] == "ok", found["reason"]
    assert {name: a["ok"] for name, a in found["audits"].items()} == dict.fromkeys(CORRUPT, True)
    assert found["audits"]["recorded_little"]["value"] == pytest.approx(2.0)
    assert found["audits"]["recorded_tokens"]["value"] == 12 * TOKENS
    assert found["audits"]["other_cpu"]["value"] == pytest.approx(0.02 / 2.0)


CORRUPT = {
    "token_counts": lambda f: change(f, "requests", "uncounted_chunks", "request == 3", 1),
    "tokens": lambda f: change_facts(
        f, "counters", "after", "generation_tokens_total", value=1001.0 + 12 * TOKENS
    ),
    "little": lambda f: change_facts(
        f, "counters", "after", "request_seconds_total", value=50.0 + 24.0 * 1.5
    ),
    "prefix_hits": lambda f: change(f, "requests", "cached_tokens", "turn == 1", 0),
    "client_lag": lambda f: change_facts(f, "client", "loop_lag_p99_s", value=0.2),
    "other_cpu": lambda f: change(f, "scrapes", "server_cpu_s", "", lambda x: 0.9 * x),
    "enough_requests": lambda f: change_facts(f, "c", value=50),
    "steady": lambda f: change(
        f, "chunks", "tokens_total", "recv_s > 6.01", lambda n: (n + 2) // 3
    ),
    "recorded_tokens": lambda f: change(f, "iterations", "committed_tokens", "i == 7", 3),
    "recorded_little": lambda f: change(f, "iterations", "queued", "", 2),
    "gauge": lambda f: change(f, "scrapes", "running", "t_s > 4", 5.0),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupted_quantity_fails_its_own_check_and_no_other(point, name):
    CORRUPT[name](point)
    found = derive(point)
    assert [n for n, a in found["audits"].items() if a["ok"] is not True] == [name]
    assert found["status"] == "invalid" and found["reason"] == found["audits"][name]["reason"]
    assert found["reason"] and "output_tok_s" not in found
    assert read_json(point / "point.json")["audits"][name]["ok"] is False


NEED_A_RECORD = ("recorded_tokens", "recorded_little", "gauge")


def test_without_a_record_its_checks_are_not_made_and_said_so(point):
    (point / "iterations.parquet").unlink()
    found = derive(point)
    assert found["status"] == "ok"
    assert {found["audits"][n]["reason"] for n in NEED_A_RECORD} == {recorded.NOT_RECORDED}


@pytest.mark.parametrize(
    ("meta", "words"),
    [({"missing_from_s": 3.0}, "ends before the point"), ({"dropped": 4}, "4 iterations were")],
)
def test_a_record_that_is_not_whole_proves_nothing(point, meta, words):
    frame = pd.DataFrame(iterations()).assign(committed_tokens=0)
    write(point, "iterations", frame, complete=False, **meta)
    found = derive(point)
    assert found["status"] == "ok"
    assert all(words in found["audits"][n]["reason"] for n in NEED_A_RECORD)


def test_a_request_that_was_cut_may_have_committed_more_than_its_client_saw(point):
    change(point, "requests", "status", "request == 11", "cancelled")
    change(point, "requests", "output_tokens", "request == 11", 5)
    one = recorded.recorded_tokens(Recording.read(point).requests, read(point), 64)
    assert one["ok"] and one["expected"] == [12 * TOKENS - 15, 12 * TOKENS - 15 + 59]
    change(point, "iterations", "committed_tokens", "i == 7", 2 + 45)
    assert not recorded.recorded_tokens(Recording.read(point).requests, read(point), 64)["ok"]


def read(folder):
    return recorded.read_iterations(folder)


def test_the_page_of_the_prefix_cache_comes_from_the_deployment(point):
    change(point, "requests", "cached_tokens", "turn == 1", 90)
    assert check(Recording.read(point))["prefix_hits"]["ok"] is False
    change_facts(point, "page_tokens", value=16)
    assert check(Recording.read(point))["prefix_hits"]["ok"] is True


@pytest.mark.parametrize(
    ("t_s", "value", "fits"),
    [
        (5.05, 3, True),  # the decode batch
        (5.05, 1, True),  # a prefill of two while one waited, ten decodes ago
        (5.05, 9, False),
        (5.05, 0, False),  # there was no pause
        (9.5, 0, True),  # all has ended
        (9.5, 3, True),  # not refreshed yet
    ],
)
def test_what_the_gauge_may_show(t_s, value, fits):
    rows = [{"t_s": 4.0, "dur_s": 0.1, "mode": "prefill", "bs": 2, "running": 3, "queued": 0}]
    rows += [
        {"t_s": 4.1 + 0.1 * j, "dur_s": 0.1, "mode": "verify", "bs": 3, "running": 3, "queued": 0}
        for j in range(10)
    ]
    frame = pd.DataFrame(rows)
    frame.attrs["recorder"] = {"complete": True}
    found = recorded.gauge(pd.DataFrame({"t_s": [t_s], "running": [float(value)]}), frame)
    assert found["ok"] is fits

"""The null server sends what was asked for, stamped, and its log agrees with what was received."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from kvtop_lib.bench.floor import read_streams, seen_in
from kvtop_lib.bench.null_server import NullServer
from kvtop_lib.bench.null_stream import HEAD, Stream, phase
from kvtop_lib.bench.ours import play_streams


@contextmanager
def null(period_s: float = 0.01, **kw):
    server = NullServer(period_s=period_s, **kw)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}", server
    finally:
        server.stop = True
        thread.join(10)


def get(url: str):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def post(url: str, body: bytes) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def ask(**more) -> bytes:
    return json.dumps({"model": "null-server", "messages": [], "stream": True, **more}).encode()


def events(body: bytes) -> list[bytes]:
    return [line[6:] for line in body.split(b"\n\n") if line]


@pytest.mark.parametrize("drive", [read_streams, play_streams], ids=["floor", "kvtop"])
def test_every_chunk_is_received_after_it_was_sent_and_none_is_lost(drive):
    with null() as (url, _):
        seen, cost = drive(url, 7, 9)
        log, stats = get(f"{url}/null/log"), get(f"{url}/null/stats")
    assert sorted(s.number for s in seen) == [r["number"] for r in log] == list(range(7))
    assert {s.status for s in seen} == {"ok"}
    for s in seen:
        sent = log[s.number]["sent_ns"]
        assert len(s.recv_s) == len(sent) == 9
        assert all(r * 1e9 >= n - 1000 for r, n in zip(s.recv_s, sent, strict=True))
    assert (stats["completed"], stats["sent_chunks"], stats["active"]) == (7, 63, 0)
    assert cost["cpu_s"] > 0


def test_chunks_are_due_one_period_after_the_other_from_the_first():
    with null(period_s=0.02) as (url, server):
        read_streams(url, 1, 10)
        sent = server.stamps[0]
    # each was sent at or after its due time, and the dues are exact multiples of the period
    dues = [s - late for s, late in zip(sent, server.late, strict=True)]
    assert {b - a for a, b in zip(dues, dues[1:], strict=False)} == {20_000_000}
    assert min(server.late) >= 0


def test_streams_that_send_at_once_share_their_due_times():
    with null(period_s=0.05, together=True) as (url, server):
        read_streams(url, 3, 2)
    stamps = sorted(stamp for stream in server.stamps for stamp in stream)
    dues = [s - late for s, late in zip(stamps, server.late, strict=True)]
    assert [due % 50_000_000 for due in dues] == [0] * 6


def test_the_stream_speaks_sglangs_dialect():
    body = ask(max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True})
    with null() as (url, server):
        status, text = post(f"{url}/v1/chat/completions", body)
        log = list(server.stamps[0])
    parts = events(text)
    assert (status, parts[-1]) == (200, b"[DONE]")
    read = [json.loads(p) for p in parts[:-1]]
    assert [p["usage"] and p["usage"]["completion_tokens"] for p in read] == [1, 2, 3, None, 3]
    assert [p["sent_ns"] for p in read[:3]] == log
    said = [c["delta"]["content"] for p in read for c in p["choices"]]
    assert said == ["#0 ", "tok ", "tok ", None]
    assert read[3]["choices"][0]["finish_reason"] == "length"


def test_usage_is_sent_only_where_it_was_asked_for():
    with null() as (url, _):
        _, text = post(f"{url}/v1/completions", ask(max_completion_tokens=2))
    read = [json.loads(p) for p in events(text)[:-1]]
    assert [p["usage"] for p in read] == [None, None, None]
    assert [p["choices"][0]["text"] for p in read] == ["#0 ", "tok ", ""]


def test_other_requests_are_answered_and_are_no_streams():
    with null() as (url, server):
        status, text = post(f"{url}/v1/chat/completions", ask(stream=False, max_tokens=2))
        assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 2)
        assert get(f"{url}/v1/models")["data"][0]["id"] == "null-server"
        assert get(f"{url}/health") == {}
        assert post(f"{url}/v1/chat/completions", b"[]")[0] == 400
        assert post(f"{url}/nothing", b"{}")[0] == 404
        assert server.started == 0
        get(f"{url}/null/reset")


def test_a_client_that_goes_away_is_counted_as_broken():
    import socket
    import time

    with null(period_s=0.01) as (url, server):
        sock = socket.create_connection(("127.0.0.1", server.port))
        body = ask(max_tokens=10_000)
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        sock.sendall(body)
        assert sock.recv(len(HEAD)) == HEAD
        sock.close()
        until = time.monotonic() + 30
        while not server.broken and time.monotonic() < until:
            time.sleep(0.01)
        assert (server.broken, server.active, server.completed) == (1, 0, 0)


def test_phases_are_spread_evenly_over_the_period():
    phases = sorted(phase(n, 0.1) for n in range(100))
    gaps = [b - a for a, b in zip(phases, phases[1:], strict=False)]
    assert 0 <= phases[0] and phases[-1] < 0.1
    assert max(gaps) < 3 * 0.1 / 100


def test_the_floor_finds_chunks_wherever_the_network_cut_them():
    stream = Stream(5, 4, True, True, True)
    whole = HEAD + b"".join(stream.chunk(k, 1000 + k) for k in range(4))
    ends, at = [], 0
    for k in range(4):
        at = whole.index(b'"sent_ns":%d}\n\n' % (1000 + k)) + len(b'"sent_ns":1000}\n\n')
        ends.append(at)
    for size in (1, 7, 64, len(whole)):
        buffers = [whole[i : i + size] for i in range(0, len(whole), size)]
        seen = seen_in([float(i) for i in range(len(buffers))], buffers)
        assert (seen.number, seen.status) == (5, "ok")
        assert seen.recv_s == [float((end - 1) // size) for end in ends]
    assert seen_in([0.0], [whole[:-40]]).status == "truncated"

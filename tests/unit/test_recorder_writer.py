"""The stream of iterations: what survives which end, and what a reader makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow.parquet as pq
import pytest

from kvtop_lib.engine.iterations_stream import cut, read_stream
from kvtop_lib.metrics.recorded import obstacle, read_iterations
from kvtop_lib.sglang_plugin import recorder_writer
from kvtop_lib.sglang_plugin.recorder_writer import Writer
from kvtop_lib.store import write_json


def record(i: int, t_s: float = 0.0, **more) -> dict:
    row = {"i": i, "t_s": t_s, "dur_s": 0.5, "mode": "decode", "bs": 2, "requests": ["a", "b"]}
    return {**row, "committed": [1, 1], "parts": {"target": 0.4, "receive": 0.05}, **more}


def test_a_stream_says_until_when_it_is_whole(tmp_path):
    file, now = tmp_path / "s", [5.0]
    writer = Writer(file, {"kv_tokens": 9}, clock=lambda: now[0], start=False)
    assert read_stream(file).until_s == float("-inf")
    writer.put(record(0))
    writer.flush()
    writer.put(record(1))
    stream = read_stream(file)
    assert stream.header["kv_tokens"] == 9 and stream.until_s == 5.0 and stream.ended is None
    assert [r["i"] for r in stream.records] == [0]
    assert stream.records[0]["requests"] == ["a", "b"]
    now[0] = 7.0
    writer.close("shutdown")
    writer.close("again")
    stream = read_stream(file)
    assert [r["i"] for r in stream.records] == [0, 1]
    assert (stream.ended, stream.until_s) == ("shutdown", 7.0)


def test_memory_is_bounded_and_what_was_dropped_is_counted(tmp_path):
    writer = Writer(tmp_path / "s", {}, capacity=10, start=False)
    for i in range(25):
        writer.put(record(i))
    writer.close("shutdown")
    stream = read_stream(tmp_path / "s")
    assert [r["i"] for r in stream.records] == list(range(10)) and stream.dropped == 15


def test_ids_are_written_once_and_the_table_of_ids_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_writer, "KNOWN_IDS", 4)
    writer = Writer(tmp_path / "s", {}, start=False)
    names = [[f"r{i}", f"r{i + 1}"] for i in range(20)]
    for i, pair in enumerate(names):
        writer.put(record(i, requests=pair))
    writer.close("shutdown")
    assert [r["requests"] for r in read_stream(tmp_path / "s").records] == names


def test_a_torn_last_line_is_left_out(tmp_path):
    writer = Writer(tmp_path / "s", {}, start=False)
    writer.put(record(0))
    writer.flush()
    with open(tmp_path / "s", "ab") as f:
        f.write(b'{"i": 1, "t_s": 0.')
    stream = read_stream(tmp_path / "s")
    assert [r["i"] for r in stream.records] == [0] and stream.ended is None


def test_no_stream_is_an_empty_stream(tmp_path):
    assert read_stream(tmp_path / "none").records == []


def test_putting_never_waits_for_a_disk_that_hangs(tmp_path, monkeypatch):
    hang = threading.Event()
    real = os.write

    def slow(fd, data):
        hang.wait(30)
        return real(fd, data)

    writer = Writer(tmp_path / "s", {}, start=False)
    monkeypatch.setattr(recorder_writer.os, "write", slow)
    writer.put(record(0))
    thread = threading.Thread(target=writer.flush)
    thread.start()
    for i in range(1, 1000):
        writer.put(record(i))  # would stop here
    assert not hang.is_set()
    hang.set()
    thread.join(60)
    writer.close("shutdown")
    assert len(read_stream(tmp_path / "s").records) == 1000


SERVER = """
import sys, time
from kvtop_lib.sglang_plugin.recorder import Recorder
from kvtop_lib.sglang_plugin.recorder_writer import Writer, close_on_sigterm
writer = Writer(sys.argv[1], {"kv_tokens": 1})
recorder = Recorder(writer.put)
close_on_sigterm(recorder, writer)
i = 0
while True:
    recorder.pass_begins()
    recorder.batch_begins({"mode": "decode", "requests": [], "committed": [1]})
    time.sleep(0.002)
    i += 1
    print(i, flush=True)
"""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def ended(request, tmp_path):
    """(signal, exit code, iterations that had begun, time of the signal, stream)."""
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    )
    begun = 0
    while begun < 300:
        begun = int(child.stdout.readline())
    at_s = time.monotonic()
    child.send_signal(request.param)
    tail = child.stdout.read().split()
    code = child.wait()
    return request.param, code, int(tail[-1]) if tail else begun, at_s, read_stream(tmp_path / "s")


def test_what_a_signal_costs(ended):
    number, code, begun, at_s, stream = ended
    assert code == -number
    recorded = len(stream.records)
    assert [r["i"] for r in stream.records] == list(range(recorded))
    if number == signal.SIGTERM:
        assert stream.ended == "SIGTERM" and begun <= recorded <= begun + 1
    else:
        assert stream.ended is None and recorded < begun + 2
        # whatever ended before `until_s` is there, and `until_s` is not long ago
        lost = [r for r in stream.records if r["t_s"] > stream.until_s]
        assert not lost and stream.until_s <= at_s


def folder_of_a_point(tmp_path, start_s, end_s):
    facts = {"clock": {"start_s": start_s}, "window": {"drained_s": end_s}}
    write_json(tmp_path / "recording.json", facts)
    return tmp_path


def read_point(folder):
    table = pq.read_table(folder / "iterations.parquet")
    return table.to_pylist(), json.loads(table.schema.metadata[b"kvtop"])


def test_a_point_takes_its_iterations_and_says_that_it_has_them_all(tmp_path):
    now = [0.0]
    header = {"draft_kv_bytes": 5}
    writer = Writer(tmp_path / "s", header, clock=lambda: now[0], start=False)
    for i in range(10):
        writer.put(record(i, t_s=float(i), kv_used=i, accepted=[1, 2], source=["mtp", "ngram"]))
    now[0] = 20.0
    writer.flush()
    folder = folder_of_a_point(tmp_path, 3.0, 7.0)
    cut(tmp_path / "s", folder)
    rows, meta = read_point(folder)
    assert [r["i"] for r in rows] == [3, 4, 5, 6]
    assert rows[0]["committed_tokens"] == 2 and rows[0]["accepted_drafts"] == 3
    assert rows[0]["target_s"] == 0.4 and rows[0]["draft_s"] is None
    assert rows[0]["unaccounted_s"] == pytest.approx(0.05)
    assert rows[0]["draft_kv_used"] == rows[0]["kv_used"] == 3  # the same token slots
    assert rows[0]["source"] == ["mtp", "ngram"]
    assert meta["complete"] and meta["missing_from_s"] is None and meta["dropped"] == 0


@pytest.mark.parametrize(
    ("until_s", "skip", "missing_from_s", "dropped"), [(5.0, None, 5.0, 0), (20.0, 4, None, 1)]
)
def test_a_point_whose_record_is_not_whole_says_so(
    tmp_path, until_s, skip, missing_from_s, dropped
):
    writer = Writer(tmp_path / "s", {}, clock=lambda: until_s, start=False)
    for i in range(10):
        if i != skip and i < until_s:
            writer.put(record(i, t_s=float(i)))
    writer.flush()
    folder = folder_of_a_point(tmp_path, 2.0, 8.0)
    cut(tmp_path / "s", folder, wait_s=0.0)
    _, meta = read_point(folder)
    assert not meta["complete"]
    assert (meta["missing_from_s"], meta["dropped"]) == (missing_from_s, dropped)


def test_a_server_without_a_recorder_leaves_no_file(tmp_path):
    folder = folder_of_a_point(tmp_path, 0.0, 1.0)
    assert cut(tmp_path / "none", folder, wait_s=0.0) is None
    assert not (folder / "iterations.parquet").exists()


@pytest.mark.parametrize("how", ["told", "unwritable"])
def test_a_recorder_that_failed_says_so_and_until_when_its_record_is_whole(tmp_path, how):
    now = [5.0]
    writer = Writer(tmp_path / "s", {}, clock=lambda: now[0], start=False)
    writer.put(record(0, t_s=3.0))
    writer.flush()
    now[0] = 9.0
    if how == "told":
        writer.fail("KeyError: 'x'")
    else:
        writer.put(record(1, t_s=6.0, more={"x": object()}))
    writer.put(record(2, t_s=7.0))
    writer.flush()
    writer.flush()
    writer.close("SIGTERM")
    stream = read_stream(tmp_path / "s")
    assert [r["i"] for r in stream.records] == [0] and stream.until_s == 5.0
    why = "KeyError: 'x'" if how == "told" else "TypeError: "
    assert stream.ended.startswith(f"failed: {why}")
    folder = folder_of_a_point(tmp_path, 2.0, 8.0)
    cut(tmp_path / "s", folder, wait_s=60.0)  # does not wait for what will not come
    meta = read_point(folder)[1]
    assert not meta["complete"] and meta["missing_from_s"] == 5.0
    assert obstacle(read_iterations(folder)).startswith(f"the recorder failed: {why}")


def test_a_file_that_takes_no_more_stops_the_writer_only(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "s", {}, start=False)
    monkeypatch.setattr(recorder_writer, "PERIOD_S", 0.001)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    writer.put(record(0))
    with monkeypatch.context() as broken:
        broken.setattr(recorder_writer.os, "write", full)
        writer._run()  # ends by itself
    writer.put(record(1))
    writer.close("SIGTERM")
    assert read_stream(tmp_path / "s").records == [] and writer.dropped == 1

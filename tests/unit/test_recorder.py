"""The recorder's core against a scripted clock, and device marks against a stand-in for events."""

from __future__ import annotations

import pytest

from kvtop_lib.sglang_plugin import recorder
from kvtop_lib.sglang_plugin.recorder import OPEN_RECORDS, Recorder
from kvtop_lib.sglang_plugin.recorder_marks import DeviceMarks, HostMarks


class Clock:
    """A clock that moves only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


class Result:
    """Stands for the object that the engine hands from launch to processing."""


@pytest.fixture
def clock():
    return Clock()


def test_a_part_inside_a_part_is_not_counted_twice(clock):
    marks = HostMarks(clock)
    outer = marks.begin("launch")
    clock.tick(1)
    inner = marks.begin("verify")
    clock.tick(2)
    assert "verify" in marks
    marks.end(inner)
    clock.tick(4)
    marks.end(outer)
    clock.tick(8)  # between marks: nobody's
    assert marks.take() == {"launch": 5.0, "verify": 2.0}
    assert marks.take() == {}


def test_the_end_of_a_part_closes_what_an_error_left_open_inside(clock):
    marks = HostMarks(clock)
    outer = marks.begin("worker")
    marks.begin("verify")
    clock.tick(1)
    marks.end(outer)
    clock.tick(1)
    assert marks.take() == {"verify": 1.0} or marks.take() == {}
    assert "verify" not in marks and "worker" not in marks


def run_pass(rec, clock, times, *, batch=None, result=None, processed=None):
    """One pass of the loop: parts of the given lengths, in the loop's order."""
    rec.pass_begins()
    for name, seconds in times.items():
        if name == "launch" and batch is not None:
            rec.batch_begins(dict(batch))
        begun = rec.begin(name)
        clock.tick(seconds)
        if name == "launch" and result is not None:
            rec.batch_launched(result, {})
        if name == "process" and processed is not None:
            rec.batch_processed(*processed)
        rec.end(begun)


def test_a_record_per_pass_that_runs_a_batch(clock):
    rows: list[dict] = []
    rec = Recorder(rows.append, clock=clock)
    first, second = Result(), Result()
    run_pass(rec, clock, {"receive": 1, "schedule": 1})  # idle
    run_pass(
        rec, clock, {"receive": 1, "schedule": 2, "launch": 3, "process": 4},
        batch={"mode": "prefill", "bs": 1}, result=first, processed=(first, {"committed": [1]}),
    )  # fmt: skip
    run_pass(
        rec, clock, {"receive": 1, "schedule": 1, "launch": 5, "process": 1},
        batch={"mode": "decode", "bs": 1}, result=second, processed=(second, {"committed": [2]}),
    )  # fmt: skip
    rec.close()
    assert [r["i"] for r in rows] == [0, 1]
    assert [(r["t_s"], r["dur_s"]) for r in rows] == [(102.0, 10.0), (112.0, 8.0)]
    assert rows[0]["parts"] == {"record": 0, "receive": 1, "schedule": 2, "launch": 3, "process": 4}
    assert [r["committed"] for r in rows] == [[1], [2]]
    assert not any(k.startswith("_") for r in rows for k in r)


def test_with_overlap_a_record_waits_for_its_results_and_keeps_the_order(clock):
    rows: list[dict] = []
    rec = Recorder(rows.append, clock=clock)
    results = [Result() for _ in range(3)]
    for i, result in enumerate(results):  # results of batch i are processed in pass i + 1
        done = (results[i - 1], {"committed": [10 + i - 1]}) if i else None
        times = {"launch": 1, "process": 1} if i else {"launch": 1}
        run_pass(rec, clock, times, batch={"mode": "decode"}, result=result, processed=done)
        assert len(rows) == max(0, i - 1)
    run_pass(rec, clock, {"process": 1}, processed=(results[2], {"committed": [12]}))
    rec.pass_begins()
    assert [(r["i"], r["committed"]) for r in rows] == [(0, [10]), (1, [11]), (2, [12])]
    assert rows[1]["parts"]["process"] == 1  # of its pass, though it processed batch 0


def test_a_pass_that_leaves_requests_waiting_is_a_stall(clock):
    rows: list[dict] = []
    rec = Recorder(rows.append, clock=clock)
    rec.pass_begins()
    for _ in range(3):
        clock.tick(2)
        rec.pass_begins(queued=4, running=1)
    run_pass(rec, clock, {"launch": 1}, batch={"mode": "decode", "queued": 3})
    rec.close()
    assert [(r["mode"], r["t_s"], r["dur_s"]) for r in rows] == [
        ("stall", 100.0, 6.0),
        ("decode", 106.0, 1.0),
    ]
    assert (rows[0]["queued"], rows[0]["running"]) == (4, 1)


def test_retractions_belong_to_the_pass_in_which_they_happened(clock):
    rows: list[dict] = []
    rec = Recorder(rows.append, clock=clock)
    rec.pass_begins()
    rec.retracted += 2
    rec.batch_begins({"mode": "decode"})
    run_pass(rec, clock, {"launch": 1}, batch={"mode": "decode"})
    rec.close()
    assert [r["retracted"] for r in rows] == [2, 0]


def test_notes_reach_the_iteration_that_runs_and_cost_nothing_without_a_recorder(
    clock, monkeypatch
):
    rows: list[dict] = []
    recorder.note(source=["mtp"])  # no recorder: nothing happens
    with recorder.part("ngram"):
        pass
    rec = Recorder(rows.append, clock=clock)
    monkeypatch.setattr(recorder, "active", rec)
    recorder.note(source=["mtp"])  # no batch runs: nothing to add to
    rec.pass_begins()
    rec.batch_begins({"mode": "verify", "source": ["mtp", "mtp"]})
    recorder.note(source=["mtp", "ngram"], widths=[4, 2], budget=3)
    with recorder.part("ngram"):
        clock.tick(0.5)
    recorder.note(predicted_s=0.1)
    rec.close()
    (row,) = rows
    assert row["source"] == ["mtp", "ngram"] and row["widths"] == [4, 2]
    assert row["more"] == {"budget": 3, "predicted_s": 0.1}
    assert row["parts"]["ngram"] == 0.5


def test_a_record_whose_results_never_came_says_so(clock):
    rows: list[dict] = []
    rec = Recorder(rows.append, clock=clock)
    run_pass(rec, clock, {"launch": 1}, batch={"mode": "decode"}, result=Result())
    rec.close()
    assert rows[0]["unprocessed"] is True and "committed" not in rows[0]


# ---- a device --------------------------------------------------------------------------------


class Device:
    """A device whose work is done when told; it counts events and forbids waiting."""

    def __init__(self, clock):
        self.clock, self.made, self.done_until = clock, 0, 0.0

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self):
        self.at = self.device.clock()

    def query(self):
        return self.at <= self.device.done_until

    def elapsed_time(self, other):
        assert self.query() and other.query(), "read before the device was there"
        return 1e3 * (other.at - self.at)

    def synchronize(self):
        raise AssertionError("the scheduler may not wait for the device")

    wait = synchronize


def test_device_times_are_read_when_the_device_is_there_and_never_waited_for(clock):
    device, rows = Device(clock), []
    rec = Recorder(rows.append, clock=clock, device=DeviceMarks(device.event))
    for i in range(2):
        result = Result()
        rec.pass_begins()
        rec.batch_begins({"mode": "verify"})
        for name, seconds in (("draft", 0.25), ("verify", 1.0), ("draft", 0.25), ("ngram", 9.0)):
            begun = rec.begin(name)
            clock.tick(seconds)
            rec.end(begun)
        rec.batch_launched(result, {})
        rec.batch_processed(result, {"committed": [i]})
    rec.pass_begins()
    assert rows == []  # results are in, the device is not: nobody waited
    device.done_until = 102.0
    rec.pass_begins()
    assert [r["device"] for r in rows] == [{"draft": 0.5, "verify": 1.0}]  # host parts have none
    device.done_until = 1e9
    rec.pass_begins()
    assert len(rows) == 2 and device.made == 12


def test_events_are_pooled_and_bounded(clock):
    device, rows = Device(clock), []
    device.done_until = 1e9
    rec = Recorder(rows.append, clock=clock, device=DeviceMarks(device.event, limit=8))
    for _ in range(100):
        rec.pass_begins()
        rec.batch_begins({"mode": "decode"})
        begun = rec.begin("target")
        clock.tick(1)
        rec.end(begun)
    rec.close()
    assert device.made <= 4 and all(r["device"] == {"target": 1.0} for r in rows)


def test_a_device_that_does_not_come_back_costs_its_times_not_the_record(clock):
    device, rows = Device(clock), []
    rec = Recorder(rows.append, clock=clock, device=DeviceMarks(device.event, limit=40))
    for _ in range(OPEN_RECORDS + 50):
        rec.pass_begins()
        rec.batch_begins({"mode": "decode"})
        begun = rec.begin("target")
        clock.tick(1)
        rec.end(begun)
    rec.close()
    assert [r["i"] for r in rows] == list(range(OPEN_RECORDS + 50))
    assert all("device" not in r for r in rows[:20]) and device.made == 40


# ---- its own failures --------------------------------------------------------------------------


def test_an_error_in_the_recorder_ends_the_recording_and_nothing_else(clock, monkeypatch, caplog):
    reasons, rows = [], []

    def put(row):
        if row["i"] == 1:
            raise ValueError("full")
        rows.append(row)

    rec = Recorder(put, fail=reasons.append, clock=clock)
    monkeypatch.setattr(recorder, "active", rec)
    for _ in range(5):
        run_pass(
            rec, clock, {"launch": 1, "process": 1},
            batch={"mode": "decode"}, result=(result := Result()), processed=(result, {}),
        )  # fmt: skip
        recorder.note(source=["mtp"])
        with recorder.part("ngram"):
            clock.tick(1)
    rec.close()
    assert [r["i"] for r in rows] == [0] and rec.failed
    assert reasons == ["ValueError: full"]
    assert [r.message for r in caplog.records] == [
        "the recorder failed and is off; serving goes on"
    ]


def test_a_part_that_was_open_when_the_recorder_failed_ends_quietly(clock):
    rec = Recorder(lambda row: None, clock=clock)
    begun = rec.begin("launch")
    rec.safely(lambda: 1 / 0)
    rec.end(begun)
    rec.end(rec.begin("process"))
    assert rec.safely(lambda: 1) is None

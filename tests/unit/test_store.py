"""Run folders: append-only results, last attempts, and no number on a failure."""

from __future__ import annotations

import json
import math
import threading
import time

import numpy as np
import pytest

from kvtop_lib import store
from kvtop_lib.store import Run, read_json, write_json
from kvtop_lib.terms import KvtopError


def _line(arm="baseline", block=1, c=4, attempt=1, status="ok", **more) -> dict:
    at = {"arm": arm, "block": block, "workload": "agent", "load": f"c{c}", "c": c}
    return {**at, "attempt": attempt, "status": status, **more}


def test_the_last_attempt_counts_and_keeps_its_line(tmp_path):
    run = Run(tmp_path / "demo")
    lines = [
        _line(c=4, output_tok_s=1.0),
        _line(c=1, output_tok_s=2.0),
        _line(c=4, attempt=2, output_tok_s=3.0, ttft_s={"p50": 0.5, "p99": math.inf}),
        _line(arm="mtp", c=4, status="failed", reason="no server"),
    ]
    assert [run.append_result(x) for x in lines] == [1, 2, 3, 4]
    frame = run.results()
    assert list(frame.arm) == ["baseline", "baseline", "mtp"]
    assert list(frame.c) == [1, 4, 4] and list(frame.line) == [2, 3, 4]
    assert list(frame.output_tok_s[:2]) == [2.0, 3.0] and math.isnan(frame.output_tok_s[2])
    assert frame.ttft_s_p50[1] == 0.5 and frame.ttft_s_p99[1] == math.inf
    assert len(run.lines()) == 4


def test_an_open_load_has_no_lanes_and_comes_after_those_that_have(tmp_path):
    run = Run(tmp_path)
    for name, rate in (("r2.00", 2.0), ("r0.50", 0.5)):
        run.append_result({**_line(), "load": name, "c": None, "rate": rate})
    run.append_result(_line(c=8))
    frame = run.results()
    assert list(frame.load) == ["c8", "r0.50", "r2.00"] and list(frame.c.isna()) == [0, 1, 1]
    without = {k: v for k, v in _line().items() if k != "c"}
    with pytest.raises(KvtopError, match="a result line needs c"):
        run.append_result(without)


def test_nothing_is_rewritten(tmp_path):
    run = Run(tmp_path)
    run.append_result(_line())
    before = (tmp_path / "results.jsonl").read_bytes()
    run.append_result(_line(attempt=2))
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)


def test_infinity_is_valid_json_on_disk_and_infinite_in_memory(tmp_path):
    run = Run(tmp_path)
    run.append_result(_line(ttft_s={"p99": np.float64("inf"), "p50": math.nan}))
    text = (tmp_path / "results.jsonl").read_text()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["ttft_s"] == {"p99": "inf", "p50": None}
    assert run.lines()[0]["ttft_s"]["p99"] == math.inf


def test_a_torn_last_line_costs_itself_alone(tmp_path):
    run, file = Run(tmp_path), tmp_path / "results.jsonl"
    run.append_result(_line())
    whole = file.read_text()
    file.write_text(whole + '{"arm": "mtp", "blo')  # killed while writing
    assert run.append_result(_line(attempt=2)) == 3
    with pytest.raises(KvtopError, match="line 2: not a result .*remove that line alone"):
        run.lines()
    kept = file.read_text().splitlines()
    file.write_text("\n".join([kept[0], kept[2]]) + "\n")
    assert [x["attempt"] for x in run.lines()] == [1, 2]


@pytest.mark.parametrize("text", ["null", "5", "[]", "{}", '{"arm": "x"}'])
def test_json_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "results.jsonl").write_text(text + "\n")
    with pytest.raises(KvtopError, match="results.jsonl, line 1: .*remove that line alone"):
        Run(tmp_path).results()


@pytest.mark.parametrize("status", ["failed", "aborted", "invalid"])
def test_a_point_that_is_not_ok_carries_no_number(tmp_path, status):
    with pytest.raises(KvtopError, match=f"is {status} must not carry output_tok_s"):
        Run(tmp_path).append_result(_line(status=status, output_tok_s=1.0))
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [(_line(status="fine"), "'fine' is not one of"), (_line(arm=None), "needs arm")],
)
def test_a_line_that_cannot_be_placed_is_refused(tmp_path, line, words):
    with pytest.raises(KvtopError, match=words):
        Run(tmp_path).append_result(line)


def test_superseded_lines_are_left_out(tmp_path):
    run = Run(tmp_path)
    run.append_result(_line(c=1, key="old"))
    run.append_result(_line(c=4, key="new"))
    run.append_result(_line(arm="mtp", key="any"))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "baseline.key").write_text("new\n")
    assert list(run.results().line) == [2, 3]


def test_folders_and_attempts(tmp_path):
    run = Run(tmp_path)
    first = run.point_dir("mtp", 2, "agent", "c8")
    assert first == tmp_path / "mtp" / "b2" / "agent" / "c8"
    assert run.next_attempt("mtp", 2, "agent", "c8") == 1
    first.mkdir(parents=True)
    assert run.next_attempt("mtp", 2, "agent", "c8") == 2
    assert run.point_dir("mtp", 2, "agent", "c8", 2).name == "c8.a2"
    run.append_result(_line(arm="mtp", block=2, c=8, attempt=2))
    frame = run.results()
    for row in (frame.iloc[0], next(frame.itertuples()), frame.to_dict("records")[0]):
        assert run.folder(row) == run.point_dir("mtp", 2, "agent", "c8", 2)


def test_an_empty_run_has_no_results(tmp_path):
    assert Run(tmp_path).results().empty
    with pytest.raises(KvtopError, match="manifest.json is missing"):
        Run(tmp_path).manifest  # noqa: B018


def test_a_broken_line_is_named(tmp_path):
    run = Run(tmp_path)
    run.append_result(_line())
    with open(tmp_path / "results.jsonl", "a") as f:
        f.write("{half\n")
    with pytest.raises(KvtopError, match="line 2: not a result"):
        run.results()


def test_json_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"x": np.int64(1), "y": np.array([1.5, math.inf])})
    assert read_json(file) == {"x": 1, "y": [1.5, math.inf]}
    with pytest.raises(TypeError):
        write_json(file, {"x": object()})
    assert read_json(file)["x"] == 1 and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_writers_at_the_same_time_get_lines_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(store.json, "dumps", _slowly(json.dumps))
    lines: dict[str, list[int]] = {}

    def write(arm: str) -> None:
        lines[arm] = [Run(tmp_path).append_result(_line(arm=arm, c=c)) for c in range(1, 21)]

    threads = [threading.Thread(target=write, args=(arm,)) for arm in "ab"]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(lines["a"] + lines["b"]) == list(range(1, 41))
    by_line = {row["line"]: row["arm"] for row in Run(tmp_path).lines()}
    assert all(by_line[n] == arm for arm, numbers in lines.items() for n in numbers)


def _slowly(function):
    """The same, but other threads run between counting the lines and writing the next one."""

    def slow(*args, **kwargs):
        time.sleep(0.001)
        return function(*args, **kwargs)

    return slow

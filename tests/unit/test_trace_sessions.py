"""Session JSONL: hand-written lines in, exact objects out; bad lines get one clear sentence."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Session, Trace, Turn, load_trace, read_sessions, write_sessions

HEADER = '{"format":"kvtop-sessions","version":1,"name":"hand","recorded_with":{"engine":"pen"}}'
TURN_0 = (
    '{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],'
    '"output":"Hello.","output_tokens":3,"finish_reason":"stop","prompt_tokens":20,'
    '"think_s":0.0,"looped":false}'
)
TURN_1 = (
    '{"messages":[{"role":"user","content":"Grüße, 1 µs"}],"output":"So so so","output_tokens":9,'
    '"finish_reason":"length","prompt_tokens":31,"think_s":1.5,"looped":true}'
)
SESSION = f'{{"id":"s1","task":"greet","withdrawn":2,"turns":[{TURN_0},{TURN_1}]}}'


def written(tmp_path, *lines: str):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_reads_what_was_written_by_hand(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    first = Turn((system, {"role": "user", "content": "Hi"}), "Hello.", 3, "stop", 20)
    second = Turn(
        ({"role": "user", "content": "Grüße, 1 µs"},), "So so so", 9, "length", 31, 1.5, True
    )
    expected = Trace("hand", {"engine": "pen"}, (Session("s1", "greet", (first, second), 2),))
    assert read_sessions(written(tmp_path, HEADER, SESSION)) == expected


def test_requests_carry_the_recorded_history(tmp_path):
    session = read_sessions(written(tmp_path, HEADER, SESSION)).sessions[0]
    assert session.request_messages(0) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert session.request_messages(1) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Grüße, 1 µs"},
    ]
    with pytest.raises(IndexError):
        session.request_messages(2)
    assert session.total_tokens == 40
    assert [session.new_prefill_tokens(k) for k in (0, 1)] == [20, 8]


def test_a_changed_message_does_not_change_the_trace(tmp_path):
    session = read_sessions(written(tmp_path, HEADER, SESSION)).sessions[0]
    session.request_messages(0)[1]["content"] = "changed"
    assert session.request_messages(0)[1]["content"] == "Hi"


def test_writes_the_same_bytes_and_its_fingerprint_is_the_files(tmp_path):
    path = written(tmp_path, HEADER, SESSION)
    trace = read_sessions(path)
    copy = tmp_path / "copy" / "t.jsonl"
    write_sessions(trace, copy)
    assert copy.read_bytes() == path.read_bytes()
    assert trace.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [p.name for p in copy.parent.iterdir()] == ["t.jsonl"]


def test_fingerprint_as_sha256sum_prints_it(tmp_path):
    path = written(tmp_path, HEADER, SESSION)
    said = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True)
    assert said.stdout.split()[0] == read_sessions(path).fingerprint


def test_only_a_regular_file_is_overwritten(tmp_path):
    trace = read_sessions(written(tmp_path, HEADER, SESSION))
    fifo, circle, link = (tmp_path / name for name in ("fifo", "circle", "link"))
    os.mkfifo(fifo)
    circle.symlink_to(circle)
    link.symlink_to(fifo)
    for out in (fifo, circle, link):
        before = out.lstat()
        with pytest.raises(KvtopError, match=f"{out} is not a regular file; name another file"):
            write_sessions(trace, out)
        assert (out.lstat().st_mode, out.lstat().st_ino) == (before.st_mode, before.st_ino)
    with pytest.raises(KvtopError, match="is a folder"):
        write_sessions(trace, tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path, there):
    path = written(tmp_path, HEADER, SESSION)
    link, target = tmp_path / "link", tmp_path / "below" / "target"
    link.symlink_to(target)
    if there:
        target.parent.mkdir()
        target.write_text("old")
    write_sessions(read_sessions(path), link)
    assert link.is_symlink() and target.read_bytes() == path.read_bytes()
    assert [p.name for p in target.parent.iterdir()] == ["target"]


def turn_with(**changes) -> str:
    turn = {**json.loads(TURN_0), **changes}
    turn = {key: value for key, value in turn.items() if value is not ...}
    return json.dumps({"id": "s1", "task": "greet", "turns": [turn]})


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "this is not JSON"),
        ("[1]", "a session must be a JSON object"),
        ('{"id":"s1","task":"t","turns":[]}', "the session has no turns"),
        ('{"task":"t","turns":[' + TURN_0 + "]}", '"id" is missing'),
        ('{"id":7,"task":"t","turns":[' + TURN_0 + "]}", '"id" must be of type str, not int'),
        ('{"id":"a","task":"t","turns":[3]}', "turn 0: a turn must be a JSON object"),
        (turn_with(messages=[]), "turn 0: it has no messages"),
        (turn_with(messages=[{"role": "user"}]), "exactly the keys"),
        (turn_with(messages=[{"role": "user", "content": 3}]), '"content" must be of type str'),
        (turn_with(output=...), 'turn 0: "output" is missing'),
        (
            turn_with(output_tokens=0),
            '"output_tokens" must be a whole number from 1 to 100,000,000, not 0',
        ),
        (turn_with(output_tokens=True), '"output_tokens" must be a whole number'),
        (turn_with(prompt_tokens=2.5), '"prompt_tokens" must be of type int, not float'),
        (turn_with(finish_reason="abort"), "'abort', not one of stop, length"),
        (
            turn_with(think_s=-1),
            '"think_s" must be a number of seconds from 0 to 10,000,000,000, not -1',
        ),
        (turn_with(looped=0), '"looped" must be of type bool, not int'),
    ],
)
def test_a_bad_line_is_named_with_its_file_number_and_fault(tmp_path, line, fault):
    path = written(tmp_path, HEADER, SESSION.replace('"s1"', '"s0"'), "", line)
    with pytest.raises(KvtopError) as caught:
        read_sessions(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 4: ")
    assert fault in message
    assert "\n" not in message and message.endswith(".")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "is empty"),
        ([SESSION], "line 1: the first line must be a header"),
        (["{}"], "line 1: the first line must be a header"),
        ([HEADER.replace(":1,", ":3,")], "line 1: version 3 is not known"),
        ([HEADER.replace('"hand"', "5")], 'line 1: "name" must be of type str'),
        ([HEADER, SESSION, SESSION], "line 3: the session id 's1' occurs twice"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, lines, fault):
    with pytest.raises(KvtopError, match=fault):
        read_sessions(written(tmp_path, *lines))


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"source": "x"}, '"source" must be of type dict, not str'),
        ({"source": None}, '"source" must be of type dict, not NoneType'),
        ({"source": []}, '"source" must be of type dict, not list'),
        ({"left_out": [1]}, '"left_out" must be of type dict, not list'),
        ({"left_out": {"rows": "many"}}, '"rows" must be of type int, not str'),
        ({"bad_lines_skipped": -1}, '"bad_lines_skipped" must be a whole number from 0 to'),
        ({"scaled_tokens": "x"}, "\"scaled_tokens\" must be a number from 0 to 1, not 'x'"),
        ({"scaled_tokens": None}, '"scaled_tokens" must be a number from 0 to 1, not None'),
        ({"scaled_tokens": 10**400}, '"scaled_tokens" must be a number from 0 to 1, not 1000'),
        ({"scaled_tokens": float("nan")}, '"scaled_tokens" must be a number from 0 to 1, not nan'),
    ],
)
def test_a_header_that_kvtop_cannot_have_written_is_a_bad_line(tmp_path, said, fault):
    header = {"format": "kvtop-sessions", "version": 1, "name": "hand", "recorded_with": said}
    for sessions in ([SESSION], []):
        path = written(tmp_path, json.dumps(header), *sessions)
        with pytest.raises(KvtopError) as caught:
            load_trace(path, scale_tokens=0.5)
        assert str(caught.value).startswith(f"{path}, line 1: {fault}")
        assert "\n" not in str(caught.value)


def test_files_that_are_no_trace(tmp_path):
    with pytest.raises(KvtopError, match="There is no trace file"):
        load_trace(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KvtopError, match="line 1: this is not UTF-8 text"):
        load_trace(tmp_path / "binary")
    with pytest.raises(KvtopError, match="no built-in trace 'builtin:nothing'"):
        load_trace("builtin:nothing")

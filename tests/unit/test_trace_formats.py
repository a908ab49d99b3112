"""Every format: hand-written files in, sessions worked out by hand; found by content alone."""

from __future__ import annotations

import json
import os

import pytest
from trace_samples import EXTENDED, MESSAGES, SAMPLES, WEKA

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import load_trace, write_sessions
from kvtop_lib.trace.readers.formats import ESTIMATED, read_trace


def sample(tmp_path, name: str, text: str | None = None):
    path = tmp_path / "requests"  # no suffix: the name tells nothing
    path.write_text(SAMPLES[name] if text is None else text, encoding="utf-8")
    return path


def read(tmp_path, name: str):
    return load_trace(sample(tmp_path, name))


def shape(session):
    return [(t.prompt_tokens, t.output_tokens, t.think_s, t.at_s) for t in session.turns]


def hashes(session):
    return [(list(t.blocks.ids), t.blocks.size, t.blocks.scope) for t in session.turns]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_found_by_content(tmp_path, name):
    trace = read(tmp_path, name)
    said = trace.recorded_with.get("source", {"format": "kvtop-sessions"})
    assert said["format"] == name.split()[0]
    if name != "kvtop-sessions":
        assert said["file"] == "requests" and len(said["sha256"]) == 64


@pytest.mark.parametrize("name", SAMPLES)
def test_converting_keeps_all_that_was_read(tmp_path, name):
    trace = read(tmp_path, name)
    write_sessions(trace, tmp_path / "ours.jsonl")
    assert load_trace(tmp_path / "ours.jsonl") == trace
    assert load_trace(tmp_path / "ours.jsonl").fingerprint == trace.fingerprint


@pytest.mark.parametrize("name", SAMPLES)
def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path, name):
    plain = read(tmp_path, name)
    text = "\ufeff" + SAMPLES[name].replace("\n", "\r\n")
    path = tmp_path / "requests"
    path.write_bytes(text.encode())
    assert load_trace(path).sessions == plain.sessions


def test_mooncake(tmp_path):
    trace = read(tmp_path, "mooncake")
    assert [s.id for s in trace.sessions] == ["line-0000001", "line-0000002", "line-0000004"]
    assert [shape(s)[0] for s in trace.sessions] == [
        (1100, 50, 0.0, 0.0),
        (1124, 60, 0.0, 3.0),
        (600, 70, 0.0, 9.0),
    ]
    assert hashes(trace.sessions[1]) == [([0, 1, 3], 512, "")]
    assert trace.recorded_with["left_out"] == {"requests with an answer of 0 tokens": 1}
    assert trace.needs_text


def test_mooncake_extended(tmp_path):
    a, b, c = read(tmp_path, "mooncake extended").sessions
    assert (a.id, b.id, c.id) == ("a", "b", "c")
    assert shape(a) == [(1024, 5, 0.0, 0.0), (1500, 7, 2.5, None)]
    assert [a.shared_tokens(k) for k in (0, 1)] == [0, 1024]
    assert [t.messages for t in b.turns] == [
        ({"role": "user", "content": "What is 2 + 2?"},),
        ({"role": "user", "content": "And 3 + 3?"},),
    ]
    assert b.turns[1].think_s == 4.0 and b.turns[0].output is None and b.needs_text
    assert b.turns[1].prompt_tokens > b.turns[0].prompt_tokens + b.turns[0].output_tokens
    assert c.turns[0].output == "Two" and not c.needs_text
    assert c.request_messages(1) == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]


def test_whole_prompts_that_do_not_go_on_stay_whole(tmp_path):
    changed = EXTENDED.replace('"One"}, {', '"Uno"}, {')
    c = load_trace(sample(tmp_path, "", changed)).sessions[2]
    assert c.turns[1].whole and c.shared_tokens(1) == 0
    assert [m["content"] for m in c.request_messages(1)] == ["Uno", "Two", "Three"]
    write_sessions(load_trace(tmp_path / "requests"), tmp_path / "ours")
    assert load_trace(tmp_path / "ours").sessions[2] == c


def test_qwen_bailian(tmp_path):
    first, second, branch = read(tmp_path, "qwen-bailian").sessions
    assert [s.id for s in (first, second, branch)] == ["chat-1", "chat-2", "chat-4"]
    assert shape(first) == [(40, 9, 0.0, 0.0), (70, 7, 20.0, 20.0)]
    assert shape(branch) == [(36, 6, 0.0, 30.0)]
    assert hashes(first)[1] == ([11, 12, 14, 15, 16], 16, "")
    assert first.shared_tokens(1) == 32 and first.new_prefill_tokens(1) == 38


def test_weka_with_a_nested_subagent(tmp_path):
    root, agent = read(tmp_path, "weka").sessions
    assert (root.id, agent.id, agent.task) == ("trace_7", "trace_7/agent-1", "subagent")
    assert shape(root) == [(140, 20, 0.0, None), (270, 21, 10.0, None)]  # 12 - 0 - 2 s
    assert shape(agent) == [(130, 30, 0.0, None), (200, 31, 1.5, None)]
    assert hashes(agent)[1] == ([1, 3, 4], 64, "trace_7")
    assert [root.shared_tokens(1), agent.shared_tokens(1)] == [128, 128]


def test_a_folder_of_files_is_one_trace(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in (7, 8):
        (folder / f"{i}").write_text(WEKA.replace("trace_7", f"trace_{i}"), encoding="utf-8")
    trace = load_trace(folder)
    assert [s.id for s in trace.sessions][::2] == ["trace_7", "trace_8"]
    assert trace.recorded_with["source"] == {"format": "weka", "files": 2}
    (folder / "9").write_text(WEKA, encoding="utf-8")
    with pytest.raises(KvtopError, match="'trace_7' occurs in several places of many"):
        load_trace(folder)
    (folder / "9").write_text(SAMPLES["azure"], encoding="utf-8")
    with pytest.raises(KvtopError, match="mixes the formats azure, weka"):
        load_trace(folder)
    (tmp_path / "none").mkdir()
    with pytest.raises(KvtopError, match="holds no trace files"):
        load_trace(tmp_path / "none")


def folder_of(tmp_path, **files: str):
    """A folder of files by name; ``__`` stands for the point."""
    (tmp_path / "many").mkdir()
    for name, text in files.items():
        (tmp_path / "many" / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return tmp_path / "many"


@pytest.mark.parametrize("name", ["azure", "burstgpt", "mooncake"])
def test_sessions_without_a_name_are_told_apart_by_their_file(tmp_path, name):
    alone = read(tmp_path, name)
    folder = folder_of(tmp_path, a__csv=SAMPLES[name], b__csv=SAMPLES[name])
    trace = load_trace(folder)
    assert [s.id for s in trace.sessions] == [f"{f}-{s.id}" for f in "ab" for s in alone.sessions]
    assert [s.turns for s in trace.sessions] == 2 * [s.turns for s in alone.sessions]
    (folder / "b.csv").unlink()  # the one file of a folder is named as if it were alone
    assert load_trace(folder).sessions == alone.sessions


def test_conversations_of_files_that_differ_in_the_suffix_are_told_apart(tmp_path):
    talk = MESSAGES.split("\n")[0]
    folder = folder_of(tmp_path, a__json=talk, a__jsonl=MESSAGES, b__json=talk)
    ids = [s.id for s in load_trace(folder).sessions]
    assert ids == ["a.json", "a.jsonl-00001", "a.jsonl-00002", "b.json"]
    (folder / "a.json").unlink()
    assert [s.id for s in load_trace(folder).sessions] == ["a-00001", "a-00002", "b"]


def test_a_name_that_is_not_utf_8_can_be_read_and_written(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"a\xff.csv")).write_text(SAMPLES["azure"], encoding="utf-8")
    alone = load_trace(folder / os.fsdecode(b"a\xff.csv"))
    assert alone.name == "a?" and alone.recorded_with["source"]["file"] == "a?.csv"
    one = load_trace(folder)
    assert one.name == "caf?" and one.recorded_with["source"]["file"] == "a?.csv"
    (folder / "b").write_text(SAMPLES["azure"], encoding="utf-8")
    for trace in (alone, one, load_trace(folder)):
        write_sessions(trace, tmp_path / "ours")
        assert load_trace(tmp_path / "ours").fingerprint == trace.fingerprint
    assert trace.sessions[0].id == "a?-line-0000002"


def test_a_folder_of_converted_files_still_says_what_their_headers_say(tmp_path):
    head, session = SAMPLES["kvtop-sessions"].splitlines()
    head = json.loads(head)
    said = [
        {"tokens": {"counted_with_tokenizer_sha256": "0"}, "left_out": {"x": 2, "y": 1}},
        {"tokens": ESTIMATED, "left_out": {"x": 3}, "bad_lines_skipped": 4},
        {"bad_lines_skipped": 5},
    ]
    files = {
        f"f{i}": json.dumps({**head, "recorded_with": s}) + "\n" + session.replace("s1", f"s{i}")
        for i, s in enumerate(said)
    }
    folder = folder_of(tmp_path, **files)
    (folder / "f1").write_text(files["f1"] + "\n{}\n", encoding="utf-8")
    trace = read_trace(folder, skip_bad=True)
    assert trace.recorded_with == {
        "source": {"format": "kvtop-sessions", "files": 3},
        "left_out": {"x": 5, "y": 1},
        "bad_lines_skipped": 10,
        "tokens": ESTIMATED,
    }
    (folder / "f1").unlink()
    assert load_trace(folder).recorded_with["tokens"] == said[0]["tokens"]
    (folder / "f0").write_text(files["f2"].replace("s2", "s0"), encoding="utf-8")
    assert "tokens" not in load_trace(folder).recorded_with


def test_azure(tmp_path):
    trace = read(tmp_path, "azure")
    assert [shape(s)[0] for s in trace.sessions] == [
        (4808, 10, 0.0, 0.0),
        (3180, 8, 0.0, 1.0),
        (110, 27, 0.0, 6.0),
    ]
    assert hashes(trace.sessions[0]) == [([], 16, "")]


@pytest.mark.parametrize(("last", "fits"), [("2340-10-06", True), ("2340-10-07", False)])
def test_a_span_that_could_not_be_read_back_is_refused(tmp_path, last, fits):
    # 10,000,000,000 s behind 2023-11-16 18:17:03 is 2340-10-06 12:03:43
    names, first, *_ = SAMPLES["azure"].splitlines()
    path = sample(tmp_path, "azure", f"{names}\n{first}\n{last} 00:00:00,5,5\n")
    if fits:
        write_sessions(load_trace(path), tmp_path / "ours")
        assert load_trace(tmp_path / "ours") == load_trace(path)
        return
    with pytest.raises(KvtopError, match="Times of requests lie 10,000,042,976 s apart"):
        load_trace(path)


def test_the_span_is_refused_also_where_the_first_time_is_0(tmp_path):
    names, tail = SAMPLES["azure"].splitlines()[0], ",5,5\n"
    text = f"{names}\n1970-01-01 00:00:00{tail}9000-01-01 00:00:00{tail}"
    with pytest.raises(KvtopError, match="Times of requests lie 221,845,392,000 s apart"):
        load_trace(sample(tmp_path, "azure", text))


def test_burstgpt_counts_failures_of_the_source(tmp_path):
    trace = read(tmp_path, "burstgpt")
    assert [shape(s)[0] for s in trace.sessions] == [(472, 18, 0.0, 0.0), (417, 276, 0.0, 113.5)]
    assert trace.recorded_with["left_out"] == {"requests that failed in the source": 1}


def test_tracelab(tmp_path):
    (session,) = read(tmp_path, "tracelab").sessions
    assert shape(session) == [(48, 11, 0.0, 0.0), (80, 12, 4.5, 14.5)]
    assert hashes(session) == [([0, 1, 2], 16, "s"), ([0, 1, 2, 3, 4], 16, "s")]
    assert session.shared_tokens(1) == 48


def test_openai_messages_with_tool_calls(tmp_path):
    one, two = read(tmp_path, "openai-messages").sessions
    assert [t.output for t in one.turns] == ['look({"id":7})', "You are Ann."]
    assert one.request_messages(1) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who am I?"},
        {"role": "assistant", "content": 'look({"id":7})'},
        {"role": "user", "content": "Result of look:\nAnn"},
    ]
    assert len(two.turns) == 1 and not one.needs_text
    assert read(tmp_path, "tau-bench").sessions[0].turns == one.turns


def test_swe_agent(tmp_path):
    (session,) = read(tmp_path, "swe-agent").sessions
    assert (session.id, session.task) == ("requests", "swe_main")
    assert [t.output for t in session.turns] == ["I list.\nls", "Done."]
    assert [t.think_s for t in session.turns] == [0.0, 1.25]


def test_sharegpt(tmp_path):
    trace = read(tmp_path, "sharegpt")
    (session,) = trace.sessions
    assert [m["content"] for m in session.request_messages(1)] == ["Hi", "Hello", "More"]
    assert sum(trace.recorded_with["left_out"].values()) == 1


def test_roles_alternate_for_any_template(tmp_path):
    talk = [
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"},
        {"role": "system", "content": "e"}, {"role": "tool", "content": "f"},
        {"role": "assistant", "content": "g"},
    ]  # fmt: skip
    (session,) = load_trace(sample(tmp_path, "", json.dumps({"messages": talk}))).sessions
    messages = session.request_messages(1)
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert [m["content"] for m in messages] == ["a\n\nb", "c\n\nd", "e\n\nf"]
    assert session.turns[1].output == "g"


BAD = {
    "mooncake": ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}',
                 "2 blocks of 512 tokens are more than"),
    "mooncake extended": ('{"session_id": "a", "messages": [{"role": "x"}], "output_length": 1}',
                          "\"role\" is 'x'"),
    "qwen-bailian": ('{"chat_id": 1, "parent_chat_id": -1, "input_length": 3, "output_length": 1}',
                     "the chat_id '1' occurs twice"),
    "azure": ("yesterday,5,5", "\"TIMESTAMP\" must be a date and time, not 'yesterday'"),
    "burstgpt": ("1,x,y", "3 cells under 6 names"),
    "tracelab": ('{"session_id": "s", "round_index": 2, "input_tokens_total": "9"}',
                 '"input_tokens_total" must be of type int, not str'),
    "openai-messages": ('{"messages": [7]}', "message 0 of 'messages': a message must be a JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_or_counted(tmp_path, name):
    line, fault = BAD[name]
    good = read(tmp_path, name).sessions
    text = SAMPLES[name] + line + "\n"
    path = sample(tmp_path, name, text)
    with pytest.raises(KvtopError) as caught:
        load_trace(path)
    number = text.count("\n")
    assert str(caught.value).startswith(f"{path}, line {number}: ")
    assert fault in str(caught.value) and str(caught.value).count("\n") == 0
    trace = read_trace(path, skip_bad=True)
    assert trace.sessions == good and trace.recorded_with["bad_lines_skipped"] == 1


BINARY = ("mooncake", "qwen-bailian", "azure", "burstgpt", "tracelab", "openai-messages",
          "kvtop-sessions")  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_a_line_that_is_no_text_is_a_bad_line_like_any_other(tmp_path, name):
    whole, path = SAMPLES[name].encode(), sample(tmp_path, name)
    good = read(tmp_path, name).sessions
    path.write_bytes(whole + b"ab\xff\xfe, 1\n" + b"\n\xc3\n")
    number = whole.count(b"\n") + 1
    with pytest.raises(KvtopError) as caught:
        load_trace(path)
    said = f"{path}, line {number}: this is not UTF-8 text (byte 0xff at column 3)"
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
    trace = read_trace(path, skip_bad=True)
    assert trace.sessions == good and trace.recorded_with["bad_lines_skipped"] == 2


def test_a_broken_character_inside_a_record_costs_that_record_alone(tmp_path):
    first, second, *rest = SAMPLES["mooncake"].encode().split(b"\n")
    path = sample(tmp_path, "mooncake")
    path.write_bytes(b"\n".join([first[:-1] + b', "note": "caf\xe9"}', second, *rest]))
    with pytest.raises(KvtopError, match="line 1: this is not UTF-8 text .byte 0xe9 at column"):
        load_trace(path)
    kept = read_trace(path, skip_bad=True)
    assert [s.id for s in kept.sessions] == ["line-0000002", "line-0000004"]


@pytest.mark.parametrize("name", ["sharegpt", "weka", "swe-agent", "tau-bench"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_document_that_is_no_text_is_one_sentence(tmp_path, name, skip_bad):
    path, text = sample(tmp_path, name), json.dumps(json.loads(SAMPLES[name]), indent=1)
    lines = text.encode().split(b"\n")
    lines[3] += b"\xff"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(KvtopError, match="requests, line 4: this is not UTF-8 text") as caught:
        read_trace(path, skip_bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\x1f\x8b\x08", b"\xff\xfe{\0}\0", b"PAR1\x15\x04\x15\x90", b"\xef\xbb\xbf\xff"]
)
def test_a_file_that_is_no_text_is_one_sentence_also_when_bad_lines_are_skipped(tmp_path, data):
    path = tmp_path / "requests"
    path.write_bytes(data + b"\n" + data)
    for skip_bad in (False, True):
        with pytest.raises(KvtopError, match="line 1: this is not UTF-8 text .*unpack or convert"):
            read_trace(path, skip_bad)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"input_length": 100000001, "output_length": 1, "timestamp": 0}',
         '"input_length" must be a whole number from 1 to 100,000,000, not 100000001'),
        ('{"input_length": 5, "output_length": 1000000000, "timestamp": 0}',
         '"output_length" must be a whole number from 0 to 100,000,000, not 1000000000'),
        ('{"input_length": 5, "output_length": 1, "timestamp": 1e13}',
         '"timestamp" must be a number of milliseconds from 0 to 10,000,000,000,000, not 1'),
    ],
)  # fmt: skip
def test_a_number_that_is_too_large_is_told_its_limit(tmp_path, line, said):
    with pytest.raises(KvtopError) as caught:
        load_trace(sample(tmp_path, "", line + "\n"))
    assert said in str(caught.value)


def test_times_may_count_from_1970(tmp_path):
    rows = [{"timestamp": 1.7e12 + ms, "input_length": 5, "output_length": 1} for ms in (0, 250)]
    trace = load_trace(sample(tmp_path, "", "".join(json.dumps(r) + "\n" for r in rows)))
    assert [s.at_s for s in trace.sessions] == [0.0, 0.25]


def test_a_fault_in_a_document_is_named_with_its_line(tmp_path):
    text = SAMPLES["sharegpt"]
    path = sample(tmp_path, "", text.replace('"Hello"', "Hello"))
    line = text[: text.index('"Hello"')].count("\n") + 1
    with pytest.raises(KvtopError, match=f"requests, line {line}: this is not JSON"):
        load_trace(path)
    path = sample(tmp_path, "", text.replace('"value": "Alone"', '"value": 5'))
    line = text[: text.index('"q2"')].count("\n")
    with pytest.raises(KvtopError, match=f"requests, line {line}: message 0 of 'conversations'"):
        load_trace(path)
    path = sample(tmp_path, "", WEKA.replace('"in": 130', '"in": 63'))
    with pytest.raises(KvtopError, match="line 1: request 0 of trace_7/agent-1: 2 blocks of 64"):
        load_trace(path)


@pytest.mark.parametrize("text", ["hello\n", '{"a": 1}\n', "[]", "[[1]]", '"x"', "a,b\n1,2\n", "{"])
def test_an_unknown_file_is_refused(tmp_path, text):
    with pytest.raises(KvtopError, match="requests, line 1: "):
        load_trace(sample(tmp_path, "", text))


def test_a_header_without_sessions_is_refused(tmp_path):
    header = SAMPLES["kvtop-sessions"].split("\n")[0] + "\n"
    with pytest.raises(KvtopError, match="holds no sessions; give one"):
        load_trace(sample(tmp_path, "", header))


@pytest.mark.parametrize("name", ["azure", "burstgpt"])
def test_a_table_may_have_all_its_cells_quoted(tmp_path, name):
    lines = SAMPLES[name].splitlines()
    quoted = "".join(",".join(f'"{c}"' for c in line.split(",")) + "\n" for line in lines)
    good = read(tmp_path, name).sessions
    assert load_trace(sample(tmp_path, name, quoted)).sessions == good


@pytest.mark.parametrize(
    ("row", "said"), [('5,"6', "line 2: this is not CSV"), ("5", "line 2: 1 cells under 3 names")]
)
def test_a_table_whose_rows_are_all_bad_says_what_is_wrong_with_the_first(tmp_path, row, said):
    names = SAMPLES["azure"].split("\n")[0] + "\n"
    with pytest.raises(KvtopError, match=said):
        load_trace(sample(tmp_path, "azure", names + row + "\n"))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_list_with_a_record_on_each_line_is_a_list(tmp_path, skip_bad):
    rows = SAMPLES["mooncake"].strip().split("\n")
    path = sample(tmp_path, "mooncake", "[\n" + ",\n".join(rows) + "\n]\n")
    trace = read_trace(path, skip_bad)
    assert len(trace.sessions) == 3 and trace.recorded_with["bad_lines_skipped"] == 0


def test_a_log_line_that_looks_like_a_list_is_a_bad_line(tmp_path):
    path = sample(tmp_path, "mooncake", "[INFO] begin\n" + SAMPLES["mooncake"])
    trace = read_trace(path, skip_bad=True)
    assert len(trace.sessions) == 3 and trace.recorded_with["bad_lines_skipped"] == 1


def test_text_behind_a_list_is_told(tmp_path):
    with pytest.raises(KvtopError, match="line 3: this is not JSON .text behind"):
        load_trace(sample(tmp_path, "", "[\n" + SAMPLES["mooncake"].split("\n")[0] + "\n] x"))


def test_a_trace_of_which_nothing_is_left_says_what_was_left_out(tmp_path):
    text = '{"timestamp": 0, "input_length": 5, "output_length": 0}\n'
    with pytest.raises(KvtopError, match="holds no sessions but 2 requests with an answer of 0 t"):
        load_trace(sample(tmp_path, "", 2 * text))


@pytest.mark.parametrize("name", ["azure", "burstgpt"])
def test_a_table_without_rows_is_refused(tmp_path, name):
    names = SAMPLES[name].split("\n")[0] + "\n"
    with pytest.raises(KvtopError, match="names columns and has no rows"):
        load_trace(sample(tmp_path, "", names))

"""Ideal prefix hits, arrivals, cutting and scaling: by hand, and on the real samples by scripts."""

from __future__ import annotations

import csv
import datetime as dt
import json
import statistics

import pytest
from trace_samples import SAMPLES, shared
from typer.testing import CliRunner

from kvtop_lib.cli import app
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Session, Trace, Turn, load_trace
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.hits import ideal_hits
from kvtop_lib.trace.info import describe, facts


def turn(ids, tokens, size=10, scope="", at_s=None):
    return Turn((), None, 4, "unknown", tokens, blocks=Blocks.of(ids, size, scope), at_s=at_s)


def test_hits_by_hand():
    trace = Trace(
        "t",
        {},
        (
            Session("a", "", (turn([1, 2], 17), turn([1, 2, 3], 30))),
            Session("b", "", (turn([1, 9, 2], 30), turn([1, 9], 25))),
        ),
    )
    inside = ideal_hits(trace, within_sessions=True)
    # a: 0, then block 1 and 7 tokens of block 2; b: 0, then blocks 1 and 9
    assert (inside.prompt_tokens, inside.tokens, inside.full_blocks) == (102, 17 + 20, 10 + 20)
    over = ideal_hits(trace)
    assert (over.tokens, over.full_blocks) == (17 + 10 + 20, 10 + 10 + 20)
    assert over.token_rate == 47 / 102 and over.block_rate == 40 / 102


def test_scopes_and_sizes_do_not_meet_and_time_decides_the_order():
    sessions = (
        Session("a", "", (turn([1], 10, scope="x"),)),
        Session("b", "", (turn([1], 10, scope="y"),)),
        Session("c", "", (turn([1], 10, size=20, scope="x"),)),
    )
    assert ideal_hits(Trace("t", {}, sessions)).tokens == 0
    late, early = turn([1, 2], 20, at_s=5.0), turn([1], 10, at_s=1.0)
    trace = Trace("t", {}, (Session("a", "", (late,)), Session("b", "", (early,))))
    assert ideal_hits(trace).tokens == 10


def test_messages_are_compared_whole():
    def session(id, answer):
        first = Turn(({"role": "user", "content": "x" * 80},), answer, 10, "stop", 40)
        second = Turn(({"role": "user", "content": "y" * 80},), "z", 10, "stop", 90)
        return Session(id, "", (first, second))

    trace = Trace("t", {}, (session("a", "same"), session("b", "same"), session("c", "other")))
    assert ideal_hits(trace, within_sessions=True).tokens == 3 * 50
    # b: everything but its last answer, which is no prompt; c: the first question twice
    assert ideal_hits(trace).tokens == 50 + (40 + 90) + (40 + 50)


def test_facts_by_hand(tmp_path):
    (tmp_path / "t").write_text(SAMPLES["mooncake"], encoding="utf-8")
    found = facts(load_trace(tmp_path / "t"), contexts=(1_230, 1_300))
    assert (found["sessions"], found["turns"]) == (3, 3)
    assert found["percentiles"]["input tokens"][:2] == [600, 1100]
    a = found["arrivals"]
    assert (a["requests"], a["distinct_times"], a["span_s"]) == (3, 3, 9.0)
    assert a["gap_cv"] == pytest.approx(statistics.pstdev([3, 6]) / 4.5)
    assert found["ideal_hit"]["over all, by full blocks"] == 1024 / (1100 + 1124 + 600)
    # 1100 + 50 + 64 for the chat template fits 1,230 tokens, 1124 + 60 + 64 does not
    assert found["fit"] == {1_230: (2 / 3, 2 / 3), 1_300: (1.0, 1.0)}


def test_large_counts_are_written_out(tmp_path):
    day = "2023-11-16 00:"
    rows = [f"{day}00:00.0,121920,10", f"{day}10:00.0,1234567,20", f"{day}16:40.5,7,3"]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""])
    (tmp_path / "t").write_text(text, encoding="utf-8")
    text = describe(load_trace(tmp_path / "t"))
    assert "| input tokens | 7 | 121,920 | " in text and " | 1,234,567 |" in text
    assert "in 1,000.5 s," in text and "e+" not in text


def test_cutting_keeps_leading_turns_and_says_what_it_cut(tmp_path):
    (tmp_path / "t").write_text(SAMPLES["weka"], encoding="utf-8")
    trace = load_trace(tmp_path / "t", max_context=230)
    assert [(s.id, len(s.turns)) for s in trace.sessions] == [
        ("trace_7", 1),
        ("trace_7/agent-1", 1),
    ]
    assert trace.recorded_with["cut"] == {
        "max_context": 230, "turns_cut": 2, "sessions_cut_away": 0,
    }  # fmt: skip
    with pytest.raises(KvtopError, match="No turn of t fits a context of 150 tokens, .* needs 224"):
        load_trace(tmp_path / "t", max_context=150)
    ours = load_trace("builtin:agent-tiny")
    most = max(s.total_tokens for s in ours.sessions)
    assert load_trace("builtin:agent-tiny", max_context=most).sessions == ours.sessions


def test_scaling_shrinks_and_keeps_what_is_shared(tmp_path):
    (tmp_path / "t").write_text(SAMPLES["weka"], encoding="utf-8")
    trace = load_trace(tmp_path / "t", scale_tokens=0.125)
    root, agent = trace.sessions
    # blocks of 64 become 8; what is behind the last block: 12, 14, 2 and 8 tokens
    assert [(t.prompt_tokens, t.output_tokens) for t in root.turns] == [(18, 2), (34, 3)]
    assert [(t.prompt_tokens, t.output_tokens) for t in agent.turns] == [(17, 4), (25, 4)]
    assert root.turns[1].blocks == Blocks.of([1, 2, 5, 6], 8, "trace_7")
    assert [root.shared_tokens(1), agent.shared_tokens(1)] == [16, 16]
    assert trace.recorded_with["scaled_tokens"] == 0.125
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(KvtopError, match="above 0 and at most 1"):
            load_trace(tmp_path / "t", scale_tokens=wrong)
    with pytest.raises(KvtopError, match="scaled by 0.001 have none"):
        load_trace(tmp_path / "t", scale_tokens=0.001)


def test_scaled_messages_keep_their_beginning():
    plain, small = (
        load_trace("builtin:agent-tiny"),
        load_trace("builtin:agent-tiny", scale_tokens=0.5),
    )
    for before, after in zip(plain.sessions, small.sessions, strict=True):
        for a, b in zip(before.request_messages(0), after.request_messages(0), strict=True):
            assert a["content"].startswith(b["content"])
            assert len(b["content"]) == -(-len(a["content"]) // 2)
        assert after.turns[0].prompt_tokens == round(before.turns[0].prompt_tokens / 2)
    assert plain.fingerprint != small.fingerprint


def test_the_commands(tmp_path):
    source, out = tmp_path / "t", tmp_path / "deep" / "out.jsonl"
    source.write_text(SAMPLES["weka"] + "\n{\n", encoding="utf-8")
    run = CliRunner().invoke
    assert isinstance(run(app, ["trace", "info", str(source)]).exception, KvtopError)
    options = ["--skip-bad", "--scale-tokens", "0.5", "--max-context", "200"]
    shown = run(app, ["trace", "info", str(source), *options])
    assert shown.exit_code == 0
    for said in ("format weka", "sessions: 2", "scaled tokens: 0.5", "bad lines skipped: 1"):
        assert said in shown.output
    assert '"turns_cut": 1' in shown.output
    done = run(app, ["trace", "convert", str(source), str(out), *options])
    assert done.exit_code == 0 and "2 sessions, 3 turns" in done.output
    again = run(app, ["trace", "info", str(out)]).output
    assert again.splitlines()[-1] == shown.output.splitlines()[-1]  # the fingerprint


def test_a_conversion_never_writes_over_what_it_reads(tmp_path):
    source = tmp_path / "t"
    source.write_text(SAMPLES["weka"] + "\n{\n", encoding="utf-8")
    before = source.read_bytes()
    (tmp_path / "also").symlink_to(source)
    for out in (source, tmp_path / "also"):
        done = CliRunner().invoke(app, ["trace", "convert", str(source), str(out), "--skip-bad"])
        assert isinstance(done.exception, KvtopError) and "that is read" in str(done.exception)
    inside = CliRunner().invoke(app, ["trace", "convert", str(tmp_path), str(source)])
    assert isinstance(inside.exception, KvtopError) and "that is read" in str(inside.exception)
    done = CliRunner().invoke(app, ["trace", "convert", str(source), str(tmp_path), "--skip-bad"])
    assert isinstance(done.exception, KvtopError) and "is a folder" in str(done.exception)
    assert source.read_bytes() == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["also", "t"]
    assert not list(tmp_path.parent.glob("*.writing"))


def test_azure_is_as_bursty_as_a_script_finds():
    path = shared("azure/AzureLLMInferenceTrace_code_head2000.csv")
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    times = sorted(dt.datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp() for r in rows)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    trace = load_trace(path)
    found = facts(trace)
    assert len(trace.sessions) == len(rows) == 2_000
    assert found["arrivals"]["gap_cv"] == pytest.approx(
        statistics.pstdev(gaps) / statistics.mean(gaps), rel=1e-4
    )
    assert found["arrivals"]["gap_cv"] > 5
    assert sum(t.prompt_tokens for s in trace.sessions for t in s.turns) == sum(
        int(r["ContextTokens"]) for r in rows
    )


def test_mooncake_hits_as_a_script_finds():
    path = shared("mooncake/conversation_trace_head1000.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seen, hit, total = set(), 0, 0
    for row in rows:
        n = 0
        while n < len(row["hash_ids"]) and row["hash_ids"][n] in seen:
            n += 1
        seen.update(row["hash_ids"])
        hit, total = hit + min(512 * n, row["input_length"]), total + row["input_length"]
    found = facts(load_trace(path))
    assert found["turns"] == len(rows) == 1_000
    assert found["ideal_hit"]["over all, by token"] == pytest.approx(hit / total, abs=0.001)
    assert found["ideal_hit"]["over all, by full blocks"] <= hit / total
    assert found["arrivals"]["distinct_times"] == len({r["timestamp"] for r in rows})


def test_weka_hits_inside_a_session_as_a_script_finds():
    folder = shared("weka")
    hit = total = requests = 0
    for file in sorted(folder.glob("*.json")):
        paths = set()
        for request in json.loads(file.read_text(encoding="utf-8"))["requests"]:
            requests, total = requests + 1, total + request["in"]
            ids = request["hash_ids"]
            n = 0
            while n < len(ids) and tuple(ids[: n + 1]) in paths:
                n += 1
            hit += 64 * n
            paths.update(tuple(ids[: i + 1]) for i in range(n, len(ids)))
    trace = load_trace(folder)
    inside = ideal_hits(trace, within_sessions=True)
    assert (trace.requests, inside.prompt_tokens, inside.full_blocks) == (requests, total, hit)
    assert ideal_hits(trace) == inside  # the scope of ids is the session
    assert inside.token_rate > 0.9


def test_transcripts_as_scripts_count_them():
    path = shared("tau_bench/gpt-4o-airline_head30.json")
    episodes = json.loads(path.read_text(encoding="utf-8"))
    trace = load_trace(path)
    answers = [sum(m["role"] == "assistant" for m in e["traj"]) for e in episodes]
    assert [len(s.turns) for s in trace.sessions] == answers
    for session, episode in zip(trace.sessions, episodes, strict=True):
        assert session.request_messages(0)[0]["content"] == episode["traj"][0]["content"]
    for file in sorted(shared("swe_agent").glob("*.traj")):
        history = json.loads(file.read_text(encoding="utf-8"))["history"]
        (session,) = load_trace(file).sessions
        assert len(session.turns) == sum(m["role"] == "assistant" for m in history)


def test_tracelab_rounds_as_a_script_counts_them():
    path = shared("tracelab/derived_round_trace.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trace = load_trace(path)
    assert {s.id for s in trace.sessions} == {r["session_id"] for r in rows}
    by_session = {s.id: s for s in trace.sessions}
    for row in rows:
        session, k = by_session[row["session_id"]], row["round_index"]
        assert session.turns[k].prompt_tokens == row["input_tokens_total"]
        before = session.turns[k - 1].prompt_tokens if k else 0
        wanted = min(row["prefix_tokens"], before)
        assert wanted - 16 < session.shared_tokens(k) <= wanted or k == 0

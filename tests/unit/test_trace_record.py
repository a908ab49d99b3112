"""Recording against a scripted server whose every answer is known."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from aiohttp import web

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import read_sessions
from kvtop_lib.trace.agent import PlannedTurn, SessionPlan
from kvtop_lib.trace.card import card, facts
from kvtop_lib.trace.record import RecordLimits, record
from kvtop_lib.trace.served import served_engine, served_tokenizer

LOOP = "It reads the file. " * 3


class Scripted:
    """Answers each request by its last message; counts requests."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.fail_at = None
        self.info: dict = {}

    def reply(self, body: dict) -> dict:
        asked = body["messages"][-1]["content"]
        texts = {"loop": LOOP, "again": "This is the answer to one."}
        text = texts.get(asked.split()[0], f"This is the answer to {asked}.")
        words = sum(len(m["content"].split()) for m in body["messages"])
        return {
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": words, "completion_tokens": len(text.split())},
        }

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.fail_at and len(self.bodies) >= self.fail_at:
            return web.Response(status=503, text="out of\nmemory")
        return web.json_response(self.reply(body))


@pytest.fixture
def server():
    scripted, loop = Scripted(), asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.chat)

    async def info(_: web.Request) -> web.Response:
        told = {"version": "0.5", "dtype": "float32", "api_key": "x", **scripted.info}
        return web.json_response(told)

    app.router.add_get("/server_info", info)
    runner = web.AppRunner(app)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]

    scripted.url = f"http://127.0.0.1:{loop.run_until_complete(start())}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield scripted
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(runner.cleanup())
    loop.close()


def plan(id: str, *questions: str, keep: int | None = None) -> SessionPlan:
    turns = [
        PlannedTurn(({"role": "user", "content": q},), float(k)) for k, q in enumerate(questions)
    ]
    return SessionPlan(id, "task", tuple(turns), keep or len(turns))


def run(server, plans, out, sessions=None, **more):
    return record(
        server.url, plans, out, name="t", sessions=sessions or len(plans), concurrency=1, **more
    )


def test_each_answer_is_asked_on_the_recorded_history(server, tmp_path):
    out = tmp_path / "t.jsonl"
    trace = run(server, [plan("a", "one", "two", "three")], out, recorded_with={"model": "m"})
    assert [b["messages"] for b in server.bodies] == [
        trace.sessions[0].request_messages(k) for k in range(3)
    ]
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "This is the answer to one."},
        {"role": "user", "content": "two"},
    ]
    assert {(b["temperature"], b["max_tokens"]) for b in server.bodies} == {(0, 100)}
    turn = trace.sessions[0].turns[1]
    assert (turn.output, turn.output_tokens) == ("This is the answer to two.", 6)
    assert (turn.prompt_tokens, turn.think_s, turn.finish_reason) == (8, 1.0, "stop")
    assert trace.recorded_with == {
        "model": "m",
        "temperature": 0,
        "max_output_tokens": 100,
        "session_tokens": 800,
        "loops_taken_back": True,
    }
    assert read_sessions(out) == trace
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_loops_and_repetitions_are_taken_back_with_their_question(server, tmp_path):
    questions = ("one", "loop", "again", "two", "three", "four")
    trace = run(server, [plan("a", *questions, keep=3)], tmp_path / "t.jsonl")
    session = trace.sessions[0]
    assert [t.messages[0]["content"] for t in session.turns] == ["one", "two", "three"]
    assert session.withdrawn == 2
    assert "loop" not in json.dumps(session.request_messages(2))
    assert facts(trace)["answers_taken_back"] == 2
    assert facts(trace)["share_taken_back"] == pytest.approx(2 / 5)


def test_loops_can_be_kept(server, tmp_path):
    limits = RecordLimits(take_back=False)
    plans = [plan("a", "loop", "one", "again")]
    session = run(server, plans, tmp_path / "t.jsonl", limits=limits).sessions[0]
    assert [t.looped for t in session.turns] == [True, False, False]
    assert session.withdrawn == 0


def test_a_session_that_begins_with_a_loop_or_ends_early_is_given_up(server, tmp_path):
    plans = [
        plan("a", "loop first", "one", "two", "three", keep=3),
        plan("b", "one", "loop", "again", "two", keep=3),
        plan("c", "five", "six", "seven"),
        plan("d", "eight", "nine", "ten"),
    ]
    trace = run(server, plans, tmp_path / "t.jsonl", sessions=2)
    assert [s.id for s in trace.sessions] == ["c", "d"]
    with pytest.raises(KvtopError, match="Only 2 of 4 planned sessions could be recorded, not 3"):
        run(server, plans, tmp_path / "u.jsonl", sessions=3)


def test_a_turn_beyond_the_sessions_size_ends_it(server, tmp_path):
    # Prompts and answers of 6 words: prompt + answer is 7, 14, 21 and 28 tokens.
    limits = RecordLimits(session_tokens=21)
    trace = run(
        server, [plan("a", "one", "two", "three", "four")], tmp_path / "t.jsonl", limits=limits
    )
    assert [t.prompt_tokens + t.output_tokens for t in trace.sessions[0].turns] == [7, 14, 21]


def test_a_stopped_recording_goes_on(server, tmp_path):
    out = tmp_path / "t.jsonl"
    plans = [plan("a", "one", "two", "three"), plan("b", "four", "five", "six")]
    server.fail_at = 5
    with pytest.raises(KvtopError, match=r"refused a request \(503\): out of memory"):
        run(server, plans, out)
    assert not out.exists()
    with (tmp_path / "t.jsonl.partial").open("a") as file:
        file.write('{"id":"b","task')  # killed in the middle of a line
    server.fail_at, asked = None, len(server.bodies)
    trace = run(server, plans, out)
    assert [s.id for s in trace.sessions] == ["a", "b"]
    assert len(server.bodies) == asked + 3  # session a was not asked again


def test_a_partial_file_of_other_settings_is_refused(server, tmp_path):
    server.fail_at = 1
    with pytest.raises(KvtopError):
        run(server, [plan("a", "one", "two", "three")], tmp_path / "t.jsonl")
    with pytest.raises(KvtopError, match="was recorded with other settings"):
        limits = RecordLimits(max_output_tokens=7)
        run(server, [plan("a", "one", "two", "three")], tmp_path / "t.jsonl", limits=limits)


def test_answers_that_cannot_be_recorded_are_refused(server, tmp_path):
    plans = [plan("a", "one", "two", "three")]
    server.reply = lambda body: {"choices": [{"message": {"content": "x"}}]}
    with pytest.raises(KvtopError, match="answered without 'usage'"):
        run(server, plans, tmp_path / "t.jsonl")
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    choice = {"message": {"content": "x"}, "finish_reason": "abort"}
    server.reply = lambda body: {"choices": [choice], "usage": usage}
    with pytest.raises(KvtopError, match="ended an answer with 'abort'"):
        run(server, plans, tmp_path / "t.jsonl")


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(KvtopError, match="does not answer"):
        record("http://127.0.0.1:9", [plan("a", "one")], tmp_path / "t", name="t", sessions=1,
               concurrency=1)  # fmt: skip
    with pytest.raises(KvtopError, match="start the server first"):
        served_engine("http://127.0.0.1:9")


def test_what_the_server_says_about_itself(server):
    assert served_engine(server.url) == {"name": "sglang", "version": "0.5", "dtype": "float32"}


def test_the_card_shows_the_facts(server, tmp_path):
    trace = run(server, [plan("a", "one", "two", "three")], tmp_path / "t.jsonl")
    text = card(trace)
    assert "| requests | 3 |" in text
    assert "| output tokens | 18 |" in text
    assert "| stop share | 100.0% |" in text
    assert "| prompt tokens | 1 | 2.4 | 8 | 13.6 | 15 |" in text
    assert trace.fingerprint in text


def test_the_tokenizer_is_found_where_the_served_model_is_local(server, tmp_path):
    assert served_tokenizer(server.url) is None
    server.info = {"tokenizer_path": "some/model", "model_path": str(tmp_path)}
    assert served_tokenizer(server.url) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert served_tokenizer(server.url) == tmp_path / "tokenizer.json"
    assert served_tokenizer("http://127.0.0.1:9") is None
    for elsewhere in ("x" * 300, "~nosuchuser/x", "~a\0b"):
        server.info = {"tokenizer_path": elsewhere, "model_path": str(tmp_path)}
        assert served_tokenizer(server.url) == tmp_path / "tokenizer.json"
        server.info = {"tokenizer_path": elsewhere}
        assert served_tokenizer(server.url) is None


def test_a_tokenizer_that_may_not_be_looked_at_is_none(server, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kvtop_lib.trace.served.Path.is_dir", refuse)
    server.info = {"model_path": "model"}
    assert served_tokenizer(server.url) is None

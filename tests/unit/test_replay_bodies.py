"""Bodies are made before their time and never on the event loop's thread."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest
from replay_help import PLAN, play_point, sessions
from scripted_server import Play, ScriptedServer

from kvtop_lib.params import OpenLoad
from kvtop_lib.replay.bodies import Bodies
from kvtop_lib.replay.dialect import SGLANG
from kvtop_lib.replay.request import body, clock
from kvtop_lib.store import read_json
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.blocks import Blocks
from kvtop_lib.trace.model import Session, Turn

OPEN = OpenLoad(rate=20, arrivals="constant")


@dataclass
class Writer:
    """Writes text of blocks, and notes for what, when and on which thread."""

    made: dict[str, tuple[float, threading.Thread]] = field(default_factory=dict)
    loops: set[threading.Thread] = field(default_factory=set)

    def prompt(self, session: Session, k: int) -> str:
        text = f"{session.id} {k}"
        assert text not in self.made  # a body is made once
        self.made[text] = clock(), threading.current_thread()
        return text


def of_blocks(n: int, turns: int, writer: Writer) -> list[Session]:
    turn = Turn((), None, 8, "unknown", 10, blocks=Blocks.of([1], 16))
    return [Session(f"s{i:04}", "task", (turn,) * turns, text=writer) for i in range(n)]


@pytest.mark.parametrize("start", ["first_turn", "random_turn"])
@pytest.mark.parametrize("load", [3, OPEN])
def test_no_text_is_made_on_the_loop_and_all_of_it_before_it_is_sent(
    tmp_path, monkeypatch, load, start
):
    writer, plan = Writer(), dataclasses.replace(PLAN, window_s=1.0, start=start)
    watched = Bodies.take

    async def take(self, session, k):
        writer.loops.add(threading.current_thread())
        return await watched(self, session, k)

    monkeypatch.setattr(Bodies, "take", take)
    with ScriptedServer(lambda body, n: Play(gap_s=0.005)) as server:
        requests, _, facts = play_point(
            server, tmp_path, c=load, plan=plan, sessions=of_blocks(300, 3, writer)
        )
    assert len(requests) == len(server.bodies) > 6 and set(requests.status) == {"ok"}
    w0_s = facts["window"]["w0_s"]
    due = {f"{r.session} {r.turn}": r for r in requests.itertuples()}
    assert [b["messages"][0]["content"] for b in server.bodies] and due.keys() <= writer.made.keys()
    [loop] = writer.loops
    assert all(thread is not loop for _, thread in writer.made.values())
    assert all(writer.made[text][0] <= r.sent_s for text, r in due.items())
    first = requests.groupby("lane").first() if load == 3 else requests[requests.turn == 0]
    begun = [writer.made[f"{r.session} {r.turn}"][0] for r in first.itertuples()]
    assert max(begun) < w0_s  # before there was a clock to be late by


def test_a_body_is_that_of_its_turn_and_one_that_nobody_sends_is_forgotten():
    [one, two] = sessions(2, turns=2)

    async def main() -> None:
        with Bodies("m", PLAN, SGLANG) as bodies:
            for session in (one, two):
                bodies.ahead(session, 0)
                bodies.ahead(session, 0)
                bodies.ahead(session, 2)  # there is no such turn
            await bodies.ready()
            assert list(bodies._asked) == [(one.id, 0), (two.id, 0)]
            bodies.drop(two, 0)
            bodies.drop(two, 1)
            for k in (0, 1):
                expected = body("m", one.request_messages(k), PLAN, 8, SGLANG)
                assert await bodies.take(one, k) == expected
            assert not bodies._asked

    asyncio.run(main())


def test_what_goes_wrong_with_a_body_is_told_before_anything_is_sent(tmp_path):
    untold = [dataclasses.replace(s, text=None) for s in of_blocks(20, 1, Writer())]
    with ScriptedServer() as server, pytest.raises(KvtopError, match="name the served model's"):
        play_point(server, tmp_path, c=2, sessions=untold)
    assert server.bodies == []


@pytest.mark.parametrize("load", [4, OPEN])
def test_an_interrupt_while_the_first_bodies_are_made_is_no_fault(tmp_path, load):
    main, begun = threading.main_thread().ident, []

    class Slow(Session):
        def request_messages(self, k):
            begun.append(self.id)
            if len(begun) == 1:  # the others wait for theirs
                signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)
            return super().request_messages(k)

    slow = [Slow(**vars(s)) for s in sessions(400)]
    with ScriptedServer() as server, pytest.raises(KeyboardInterrupt):
        play_point(server, tmp_path, c=load, sessions=slow)
    facts = read_json(tmp_path / "recording.json")
    assert server.bodies == [] and (facts["outcome"], facts["reason"]) == ("aborted", "interrupted")


class Broken(Session):
    """A session whose second prompt cannot be written."""

    def request_messages(self, k):
        if k:
            raise KvtopError("no second prompt")
        return super().request_messages(k)


@pytest.mark.parametrize("load", [2, OPEN])
def test_what_goes_wrong_later_ends_the_point_and_not_its_window(tmp_path, load):
    plan = dataclasses.replace(PLAN, window_s=10, drain_s=10)
    broken = [Broken(**vars(s)) for s in sessions(400, turns=2)]
    with ScriptedServer() as server, pytest.raises(KvtopError, match="no second prompt"):
        play_point(server, tmp_path, c=load, plan=plan, sessions=broken)
    assert 0 < len(server.bodies) < 100

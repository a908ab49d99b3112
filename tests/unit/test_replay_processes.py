"""How many client processes there are, what they say to each other, and their records as one."""

from __future__ import annotations

import asyncio
import math
import pickle
import socket
import subprocess
import sys

import psutil
import pytest
from replay_help import sessions
from trace_samples import SAMPLES

from kvtop_lib.metrics import health as checks
from kvtop_lib.paths import embedded_dir
from kvtop_lib.replay import SessionSlice, loop, processes
from kvtop_lib.replay.dealer import Dealer
from kvtop_lib.replay.health import PERIOD_S, LoopLag, together
from kvtop_lib.replay.lanes import Place
from kvtop_lib.replay.machine import Machine
from kvtop_lib.replay.record import Record, numbered
from kvtop_lib.replay.reply import Raw, Reply
from kvtop_lib.replay.request import clock
from kvtop_lib.replay.wire import Line, packed, portable, unpacked
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import load_trace


def lag(*parts: tuple[float, float]) -> LoopLag:
    """A sample every period: (seconds, lag) one after the other, up to now = 100 s."""
    lags = [x for seconds, x in parts for _ in range(round(seconds / PERIOD_S))]
    start_s = 100.0 - PERIOD_S * len(lags)
    return LoopLag([(start_s + PERIOD_S * (i + 1), x) for i, x in enumerate(lags)])


CALM, LATE = lag((5, 0.001)), lag((5, 0.006))


@pytest.mark.parametrize(
    ("lags", "running", "cores", "local", "expected"),
    [
        ([CALM], 1, 64, False, 1),
        ([LATE], 1, 64, False, 2),
        ([lag((9, 0.02), (2, 0.001))], 1, 64, False, 1),  # it was late, and is no longer
        ([lag((9, 0.001), (2, 0.02))], 1, 64, False, 2),
        ([lag((5, 0.001), (0.02, 0.5))], 1, 64, False, 2),  # a stop of half a second
        ([lag((5, 0.001), (0.02, 0.05))], 1, 64, False, 1),  # one late wake-up in a hundred
        ([lag((0.5, 0.02))], 1, 64, False, 1),  # too early to say
        ([LoopLag()], 1, 64, False, 1),
        ([LATE, LATE], 2, 64, False, 3),
        ([CALM, LATE], 2, 64, False, 3),  # whichever is late
        ([CALM, CALM], 2, 64, False, 2),
        ([LATE], 1, 2, False, 2),
        ([LATE, LATE], 2, 2, False, 2),  # no core is left
        ([LATE], 1, 1, False, 1),
        ([LATE], 1, 2, True, 1),  # a server here: three cores of four are its own
        ([LATE], 1, 4, True, 1),
        ([LATE], 1, 7, True, 1),
        ([LATE], 1, 8, True, 2),
        ([LATE, LATE], 2, 8, True, 2),
        ([LATE, LATE], 2, 16, True, 3),
        ([LATE, LATE, LATE], 3, 2, True, 3),  # what was asked for stays
    ],
)
def test_another_process_comes_when_lag_demands_it_and_a_core_is_free(
    lags, running, cores, local, expected
):
    recent = [x.recent_s(100.0) for x in lags]
    assert processes.wanted(recent, running, processes.room(cores, local)) == expected


def test_a_process_comes_before_the_lag_makes_a_point_invalid():
    assert pytest.approx(checks.LAG_FLOOR_S / 2) == processes.LAG_S


@pytest.mark.parametrize(("given", "found"), [("auto", "auto"), (1, 1), ("3", 3), (64, 64)])
def test_processes_that_may_be_asked_for(given, found):
    assert processes.checked(given) == found


@pytest.mark.parametrize("given", [0, 65, -1, True, 2.0, "", "two", "1" * 5000, None])
def test_processes_that_may_not(given):
    with pytest.raises(KvtopError, match="is no number of client processes; give auto or 1 to 64"):
        processes.checked(given)


class Growing:
    """In place of `Crew`: processes come, and may bring calm."""

    def __init__(
        self, lag_s: float, calm_at: int = 99, w0_s: float = math.inf, settled: bool = True
    ) -> None:
        self.number, self.most, self._lag_s, self._calm_at = 1, 4, lag_s, calm_at
        self.w0_s, self.settled_s = w0_s, -math.inf if settled else math.inf
        self.looks = 0

    def __len__(self) -> int:
        return self.number

    @property
    def lag_s(self) -> list[float]:
        self.looks += 1
        if self.looks > 20:
            self.w0_s = -math.inf  # the window is near
        return [0.0 if self.number >= self._calm_at else self._lag_s]

    async def add(self) -> None:
        self.number += 1


@pytest.mark.parametrize(
    ("crew", "cores", "expected"),
    [
        (Growing(0.02), 64, 4),  # as many as there are lanes for
        (Growing(0.02), 3, 3),
        (Growing(0.02), 1, 1),
        (Growing(0.02, calm_at=2), 64, 2),  # the second was enough
        (Growing(0.001), 64, 1),
        (Growing(0.02, w0_s=0.0), 64, 1),  # the window is near
    ],
)
def test_processes_come_one_by_one_until_the_lag_is_gone_or_the_window_near(
    monkeypatch, crew, cores, expected
):
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(processes, "cores", lambda: cores)
    asyncio.run(processes.grow(crew, "http://192.0.2.7:30000"))
    assert crew.number == expected


def test_the_window_may_come_near_between_two_looks(monkeypatch):
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(processes, "cores", lambda: 64)
    crew = Growing(0.02, w0_s=clock() + processes.START_S + 0.1)
    asyncio.run(processes.grow(crew, "http://192.0.2.7:30000"))
    assert crew.number == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [("max 100000\n", 8), ("250000 100000\n", 2), ("50000 100000\n", 1), ("9900000 100000\n", 8),
     ("", 8), (None, 8)],
)  # fmt: skip
def test_a_quota_of_cpu_time_counts_as_so_many_cores(monkeypatch, tmp_path, said, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(processes, "CPU_MAX", tmp_path / "cpu.max")
    if said is not None:
        (tmp_path / "cpu.max").write_text(said)
    assert processes.cores() == expected


@pytest.mark.parametrize("error", [KvtopError("it ended"), OSError(24, "Too many open files")])
def test_a_process_that_cannot_begin_is_told_once_and_no_other_is_tried(monkeypatch, capsys, error):
    class Stuck(Growing):
        async def add(self) -> None:
            raise error

    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(processes, "cores", lambda: 3)
    asyncio.run(processes.grow(Stuck(0.02), "http://192.0.2.7:30000"))
    assert capsys.readouterr().err == f"the client stays at 1 of 3 processes: {error}\n"


def test_no_process_comes_before_the_last_one_has_its_share(monkeypatch):
    monkeypatch.setattr(processes, "LOOK_EVERY_S", 0.0)
    crew = Growing(0.02, settled=False)

    async def main() -> None:
        growing = asyncio.create_task(processes.grow(crew, "http://192.0.2.7:30000"))
        await asyncio.sleep(0.2)
        assert len(crew) == 1
        growing.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, loop.run], ids=["asyncio", "uvloop"])
def test_messages_arrive_whole_and_in_order_and_then_the_end(run):
    async def main() -> None:
        one, two = [await Line.over(end) for end in socket.socketpair()]
        one.send("put", "x" * 5_000_000)
        one.send("stop")
        assert await two.receive() == ("put", "x" * 5_000_000)
        assert await two.receive() == ("stop",)
        two.send("over", {"a": 1})
        assert await one.receive() == ("over", {"a": 1})
        await two.close()
        with pytest.raises((EOFError, OSError)):
            await one.receive()
        await one.close()

    run(main())


class Hand:
    """Notes what is dealt to it."""

    def __init__(self) -> None:
        self.lanes = self.quota = self.stocked = 0
        self.places: list[Place] = []
        self.sessions: list = []

    def play(self, place: Place) -> None:
        self.lanes += 1
        self.places.append(place)

    def put(self, session) -> None:
        self.stocked += 1
        self.sessions.append(session)

    def allow(self, lanes: int) -> None:
        self.quota = lanes

    def take(self) -> None:
        self.stocked -= 1


class Halted:
    """In place of `Traffic`."""

    def __init__(self, open: bool) -> None:
        self.open, self.said, self.start_s = open, None, clock()

    def halt(self, outcome: str, reason: str) -> None:
        self.said = self.said or outcome


def test_lanes_are_shared_out_and_the_last_sessions_go_where_a_lane_waits():
    one, two, traffic = Hand(), Hand(), Halted(open=False)
    given = SessionSlice(sessions(14), 5)
    dealer = Dealer(traffic, given)
    dealer.join(one)
    assert one.quota == 5 and dealer.most == 5
    dealer.join(two)
    assert (one.quota, two.quota) == (3, 2)
    for lane in range(5):
        dealer.deal(Place(lane, 0.0, given.take()))
    assert [p.lane for p in one.places] == [0, 2, 4] and [p.lane for p in two.places] == [1, 3]
    assert (one.stocked, two.stocked) == (2, 2) and given.left == 5  # as many as lanes: kept back
    for _ in range(3):
        one.take()
        dealer.feed(one)
    assert one.stocked == 0 and given.left == 4  # one that waited was fed
    for _ in range(4):
        two.take()
        dealer.feed(two)
    assert two.stocked == 0 and given.left == 2 and traffic.said is None
    for _ in range(2):
        one.take()
        dealer.feed(one)
    assert traffic.said is None and given.left == 0
    two.take()
    dealer.feed(two)
    assert traffic.said == "exhausted"
    ids = [s.id for hand in (one, two) for s in hand.sessions]
    ids += [p.session.id for hand in (one, two) for p in hand.places]
    assert sorted(ids) == [s.id for s in sessions(14)]  # all, and none twice


def test_one_process_has_sessions_ready_to_the_last():
    one, traffic = Hand(), Halted(open=False)
    given = SessionSlice(sessions(4), 2)
    dealer = Dealer(traffic, given)
    dealer.join(one)
    for lane in range(2):
        dealer.deal(Place(lane, 0.0, given.take()))
    assert one.stocked == 2 and given.left == 0 and traffic.said is None
    for _ in range(2):
        one.take()
        dealer.feed(one)
    assert traffic.said is None
    one.take()
    dealer.feed(one)
    assert traffic.said == "exhausted"


def test_arrivals_alternate():
    due = SessionSlice([], 1, [0.0] * 8)
    hands, dealer = [Hand(), Hand(), Hand()], Dealer(Halted(open=True), due)
    dealer.join(*hands)
    for number in range(7):
        dealer.deal(Place(number, 0.0))
    assert [[p.lane for p in h.places] for h in hands] == [[0, 3, 6], [1, 4], [2, 5]]
    assert dealer.settled


def test_arrivals_that_were_dealt_stay_and_a_process_has_its_share_from_the_next_one_on():
    traffic = Halted(open=True)
    dealer = Dealer(traffic, SessionSlice([], 1, [0.0, 0.0, 0.0, 900.0, 901.0]))
    dealer.join(one := Hand())
    for number in range(3):
        dealer.deal(Place(number, 0.0))
    assert dealer.settled
    dealer.join(two := Hand())
    assert dealer.from_s == dealer.next_s == traffic.start_s + 900 and not dealer.settled
    for number in (3, 4):
        dealer.deal(Place(number, 0.0))
    assert [p.lane for p in one.places] == [0, 1, 2, 4] and [p.lane for p in two.places] == [3]
    assert dealer.from_s == traffic.start_s + 900 and dealer.next_s == math.inf
    traffic.start_s -= 900
    dealer.join()
    assert dealer.next_s == math.inf and not dealer.settled  # nothing is left to share


def record(request: int, sent_s: float, session: str) -> Record:
    raw = Raw(sent_s=sent_s, end_s=sent_s + 1)
    return Record(request, 0, session, 0, "window", sent_s, raw, Reply(), None, None)


def test_records_of_all_processes_are_numbered_in_order_of_sending():
    one = [record(1, 3.0, "c"), record(0, 1.0, "a"), record(2, 4.0, "d")]  # as they ended
    two = [record(0, 2.0, "b"), record(1, 4.0, "e")]
    found = numbered(one, two)
    assert [(r.request, r.session) for r in found] == list(enumerate("abcde"))
    assert numbered() == [] == numbered([], [])


def test_health_of_several_processes_is_the_worst_lag_and_the_sum_of_what_they_did():
    def facts(p99, opened, peak):
        return {
            "loop_lag_p99_s": p99, "connections_opened": opened, "requests_resent": 1,
            "raw_peak_bytes": peak, "open_files_limit": 1024, "event_loop": "uvloop",
        }  # fmt: skip

    assert together([facts(0.1, 2, 30)]) == facts(0.1, 2, 30)
    found = together([facts(None, 2, 30), facts(0.2, 3, 4), facts(0.1, 1, 1)])
    assert found == facts(0.2, 6, 35) | {"requests_resent": 3}


@pytest.mark.parametrize("name", ["builtin:agent-tiny", *SAMPLES])
def test_sessions_of_every_trace_arrive_as_they_are_and_without_the_corpus(tmp_path, name):
    path = tmp_path / "t"
    path.write_text(SAMPLES.get(name, ""), encoding="utf-8")
    trace = load_trace(path if name in SAMPLES else name, tokenizer=embedded_dir() / "tiny-glm")
    [text] = {id(s.text): s.text for s in trace.sessions}.values()
    theirs = unpacked(packed((text,)))[0]  # as it comes with the set-up
    assert (theirs is None) == (text is None) == (not trace.needs_text)
    for session in trace.sessions[:20]:
        session.request_messages(0)
        data = packed(("play", Place(3, 1.5, session, 0)), text)
        what, place = unpacked(data, theirs)
        assert (what, place) == ("play", Place(3, 1.5, session, 0))
        assert place.session.text is theirs and len(data) < 1e6
        for k in range(len(session.turns)):
            assert place.session.request_messages(k) == session.request_messages(k)
        back = unpacked(packed(("moved", place), theirs), text)[1]
        assert back.session == session and back.session.text is text


def test_text_that_is_being_made_does_not_travel():
    from kvtop_lib.trace.pieces import PieceBook
    from kvtop_lib.trace.text import BlockText

    maker = BlockText(PieceBook(("a ",), (1,), ("a ",), "0"), "t")
    bare = len(pickle.dumps(maker))
    maker.block(("", 1, 500), 500)
    again = pickle.loads(pickle.dumps(maker))
    assert len(pickle.dumps(maker)) == bare and not again._made
    assert again.block(("", 1, 500), 500) == maker.block(("", 1, 500), 500)


class Odd(Exception):
    """Cannot be made again from what it was made of."""

    def __init__(self, one, two) -> None:
        super().__init__(f"{one}{two}")


def test_a_fault_can_be_sent_whatever_it_is():
    told = portable(KvtopError("mend it"))
    assert isinstance(told, KvtopError) and str(told) == "mend it"
    assert str(portable(Odd(1, 2))) == "Odd: 12"


SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ntime.sleep(60)"


def test_all_client_processes_count_and_one_that_has_ended_is_remembered():
    others: list[psutil.Process] = []
    found = Machine("http://192.0.2.7:30000", others)
    alone = found.sample()
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        others.append(psutil.Process(p.pid))
        both, rss = found.sample(), others[0].memory_info().rss
        p.kill()
    after = found.sample()
    assert both["client_cpu_s"] >= alone["client_cpu_s"] + 0.25
    assert both["client_rss_bytes"] > rss > 0
    assert after["client_cpu_s"] >= both["client_cpu_s"]
    assert after["client_rss_bytes"] < both["client_rss_bytes"]

"""Real servers of the tiny model, one per arm, shared by the tests that ask for them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvtop_lib.engine import Server
from kvtop_lib.engine.iterations_stream import read_stream
from kvtop_lib.params import load_arm, load_model

ARMS = ("baseline", "mtp_w2", "mtp_w4", "ngram")
RUNNING: dict[str, Server] = {}  # those that are shared and not stopped yet


def pytest_collection_modifyitems(items):
    """Mark what needs a server, so that `-m "not engine"` leaves it out."""
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> dict[str, Server]:
    """A running server of every arm; at the end, nothing that their recorders took is lost.

    They start at the same time: most of a start-up is importing, which the page cache shares.
    """
    model, folder = load_model("tiny-glm"), tmp_path_factory.mktemp("servers")
    with ThreadPoolExecutor(len(ARMS)) as pool:
        starts = {
            arm: pool.submit(Server.launch, model, load_arm(arm), folder / arm, timeout_s=1800)
            for arm in ARMS
        }
        failed = [f"{arm}: {e}" for arm, start in starts.items() if (e := start.exception())]
        running = {arm: start.result() for arm, start in starts.items() if not start.exception()}
        RUNNING.update(running)
        try:
            assert not failed, failed
            yield running
        finally:
            stop_all()


def pytest_runtest_teardown(item, nextitem):
    """No server stays beside tests of other folders, which look at their own process's children."""
    if nextitem is None or Path(nextitem.path).parent != Path(__file__).parent:
        stop_all()


def stop_all() -> None:
    """Stop the shared servers; what their recorders took must be complete."""
    running = dict(RUNNING)
    RUNNING.clear()
    with ThreadPoolExecutor(len(ARMS)) as pool:
        list(pool.map(Server.stop, running.values()))
    for arm, server in running.items():
        stream = read_stream(server.iterations_file)
        assert (stream.ended, stream.dropped) == ("SIGTERM", 0), arm
        assert [r["i"] for r in stream.records] == list(range(len(stream.records))), arm

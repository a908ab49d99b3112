"""A step ends with the process that asked for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from kvtop_lib import step
from kvtop_lib.caller import bound_to, ended


@pytest.fixture
def caller():
    """A process that waits until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_killed_process_has_ended_before_anyone_has_waited_for_it(caller):
    assert not ended(caller.pid)
    caller.kill()
    with pytest.raises(KeyboardInterrupt), bound_to(caller.pid):
        time.sleep(600)
    assert ended(caller.pid)
    caller.wait()
    assert ended(caller.pid)


def test_the_end_of_the_caller_interrupts_and_the_handler_is_given_back(caller):
    before = signal.getsignal(signal.SIGTERM)
    with bound_to(caller.pid):
        pass  # it lives: nothing happens
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt), bound_to(caller.pid):
        caller.kill()
        time.sleep(600)
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_begins_when_the_caller_has_gone(caller, monkeypatch, capsys):
    caller.kill()
    caller.wait()
    monkeypatch.setattr(step, "_do", lambda *_: pytest.fail("it began"))
    assert step.main(["--caller", str(caller.pid), "test", "keys"]) == 130
    assert "keys was interrupted; what was measured is kept" in capsys.readouterr().err


def test_without_a_caller_nothing_is_watched():
    with bound_to(None):
        pass

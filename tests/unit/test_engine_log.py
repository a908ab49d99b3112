"""The reason that a log gives for a server's end."""

from kvtop_lib.engine.log import reason, tail


def test_the_last_exception_is_the_reason(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-01-01 10:00:00] ImportError: harmless, tried another\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "RuntimeError: not enough memory for 5 tokens\n"
        "[2026-01-01 10:00:01] Received sigquit from a child process.\n"
    )
    assert reason(log) == "RuntimeError: not enough memory for 5 tokens"


def test_without_an_exception_a_telling_line_is_the_reason(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("loading\nlaunch_server.py: error: unrecognized arguments: --foo\nbye\n")
    assert reason(log) == "launch_server.py: error: unrecognized arguments: --foo"


def test_the_last_line_or_nothing(tmp_path):
    log = tmp_path / "server.log"
    assert reason(log) == "the log is empty"
    log.write_bytes(b"a\n" * 50_000 + b"last \xff\n\n")
    assert reason(log).startswith("last")
    assert len(tail(log, 5)) == 5

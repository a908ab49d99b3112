"""The reason that a log gives for a server's end."""

from kvtop_lib.engine.log import reason, running_cap, tail


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


def test_the_cap_that_the_engine_chose(tmp_path):
    log = tmp_path / "server.log"
    assert running_cap(log) is None
    log.write_text(
        "[2026-01-01 10:00:00] server_args={'max_running_requests': None}\n"
        "[2026-01-01 10:00:01] max_total_num_tokens=40000, chunked_prefill_size=4096, "
        "max_prefill_tokens=16384, max_running_requests=4096, context_len=2048\n"
    )
    assert running_cap(log) == 4096

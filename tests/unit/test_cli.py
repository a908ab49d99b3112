"""The commands: what they pass on, and faults in one sentence."""

import os
import subprocess
import sys

import pytest

from kvtop_lib import cli


def kvtop(monkeypatch, *args: str) -> int:
    """Exit status of one command line."""
    monkeypatch.setattr(sys, "argv", ["kvtop", *args])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_an_unknown_arm_is_one_sentence(monkeypatch, capsys):
    assert kvtop(monkeypatch, "serve", "baselin") == 1
    error = capsys.readouterr().err
    assert error == (
        "kvtop: no arm 'baselin' (baselin.yaml is not in params/arms), did you mean 'baseline'?\n"
    )


def test_an_unknown_command_is_a_usage_error(monkeypatch, capsys):
    assert kvtop(monkeypatch, "bogus") == 2
    assert "No such command 'bogus'" in capsys.readouterr().err


def test_help_names_the_commands(monkeypatch, capsys):
    assert kvtop(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("run", "serve", "replay", "note", "lossless", "trace"))


def test_run_calls_make_with_this_python(monkeypatch):
    called = []

    class Done:
        returncode = 3

    monkeypatch.setattr(subprocess, "run", lambda command, **_: called.append(command) or Done)
    assert kvtop(monkeypatch, "run", "test") == 3
    assert called[0][0] == "make"
    here = {f"PY={sys.executable}", f"CALLER={os.getpid()}"}
    assert {"reproduce", "PROFILE=test"} | here <= set(called[0])


def test_replay_passes_its_options_on(monkeypatch):
    import kvtop_lib.replay.__main__ as replay

    given = []
    monkeypatch.setattr(replay, "main", lambda args: given.extend(args) or 0)
    assert kvtop(monkeypatch, "replay", "--url", "http://127.0.0.1:1", "--help") == 0
    assert given == ["--url", "http://127.0.0.1:1", "--help"]


def test_note_of_a_run_that_is_not_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path))
    assert kvtop(monkeypatch, "note", "nowhere") == 1
    assert "holds no results.jsonl" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "_served", broken)
    monkeypatch.setattr(sys, "argv", ["kvtop", "serve", "baseline"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


class Fake:
    """A server that answers with its arm's tokens."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.url = ids

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("other", "status"), [((1, 2), 0), ((1, 3), 1)])
def test_lossless_says_which_arm_differs(monkeypatch, capsys, tmp_path, other, status):
    from kvtop_lib import params, probe, trace
    from kvtop_lib.engine.lossless import Output

    monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path))
    monkeypatch.setattr(trace, "load_trace", lambda name: None)
    monkeypatch.setattr(probe, "probe_prompts", lambda trace, n: [[{"content": "x"}]] * n)
    monkeypatch.setattr(
        probe, "greedy_outputs", lambda url, asked, **_: [Output(url, "", "stop")] * len(asked)
    )
    monkeypatch.setattr(probe, "log_prob_gap", lambda *_: 0.25)
    outputs = {a: other if a == "mtp_w2" else (1, 2) for a in params.list_names(params.Arm)}
    monkeypatch.setattr(cli, "_served", lambda model, arm, folder: Fake(outputs[arm]))
    assert kvtop(monkeypatch, "lossless", "test", "--prompts", "3") == status
    shown = capsys.readouterr()
    assert ("kvtop: outputs differ from the baseline's: mtp_w2" in shown.err) == bool(status)
    capsys.readouterr()
    assert kvtop(monkeypatch, "lossless", "test", "--prompts", "3", "--every-arm") == status
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in lines} >= outputs.keys()
    assert sum("exempt" in line for line in lines) == 2
    itself = [x for x in lines if "0 of 3 between the baseline and itself" in x]
    assert [x.partition(":")[0] for x in itself] == ["mtp_w2"] * status
    only = ("--arm", "mtp_w2", "--arm", "ngram", "--arm", "mtp_w2")
    assert kvtop(monkeypatch, "lossless", "test", "--prompts", "3", *only) == status
    named = [x.partition(":")[0] for x in capsys.readouterr().out.splitlines()]
    assert named == ["baseline", "mtp_w2", "ngram"]
    assert kvtop(monkeypatch, "lossless", "test", "--arm", "mtp_w99") == 1
    assert "mtp_w99" in capsys.readouterr().err

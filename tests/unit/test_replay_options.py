"""The command line of a replay: what it means, and wrong combinations in one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading

import pytest

from kvtop_lib.params import OpenLoad
from kvtop_lib.params.base import ParamsFile
from kvtop_lib.params.workload import FixedShape, Workload
from kvtop_lib.replay import Plan, options
from kvtop_lib.replay.__main__ import main as cli

BASE = ["--url", "http://127.0.0.1:9", "--model", "m"]


def _read(tmp_path, text: str):
    return options.read([*BASE, "--out", str(tmp_path / "out"), *text.split()])


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("--concurrency 8", 8),
        ("--rate 0.5", OpenLoad(rate=0.5)),
        ("--rate 2 --arrivals constant", OpenLoad(rate=2, arrivals="constant")),
        (
            "--rate 2 --arrivals gamma --burstiness 0.25",
            OpenLoad(rate=2, arrivals="gamma", burstiness=0.25),
        ),
        (
            "--arrivals steps --steps 0.5x30,2x10",
            OpenLoad(arrivals="steps", steps=((0.5, 30), (2, 10))),
        ),
        (
            "--arrivals trace --time-scale 0.5 --jitter 3",
            OpenLoad(arrivals="trace", time_scale=0.5, jitter_s=3),
        ),
    ],
)
def test_options_make_a_load(tmp_path, text, load):
    assert _read(tmp_path, text)[1] == load


@pytest.mark.parametrize(("text", "found"), [("", "auto"), ("auto", "auto"), ("3", 3)])
def test_processes_of_the_client(tmp_path, text, found):
    option = f"--processes {text}" if text else ""
    assert _read(tmp_path, f"--concurrency 8 {option}")[0].processes == found


def test_think_time_is_replayed_in_an_open_loop_unless_told_otherwise(tmp_path):
    for text, factor in (
        ("--concurrency 1", 0),
        ("--rate 1", 1),
        ("--rate 1 --think-factor 0.5", 0.5),
        ("--concurrency 1 --think-factor 2", 2),
    ):
        assert _read(tmp_path, text)[3].think_factor == factor


def test_options_make_workload_and_plan(tmp_path):
    text = (
        "--concurrency 4 --start random_turn --stagger 3 --think-factor 1 --think-cap 5 "
        "--cancel-share 0.1 --cancel-within 4 --window 7 --max-context 900 --scale-tokens 0.5"
    )
    _, _, workload, plan = _read(tmp_path, text)
    assert (workload.trace, workload.max_context_tokens, workload.scale_tokens) == (
        "builtin:agent", 900, 0.5,
    )  # fmt: skip
    assert (plan.start, plan.stagger_s, plan.think_cap_s, plan.window_s) == ("random_turn", 3, 5, 7)
    assert (plan.cancel_share, plan.cancel_within_s, plan.output) == (0.1, 4, "natural")
    fixed = "--rate 1 --fixed-input 100 --fixed-output 50 --fixed-sessions 7 --tokenizer x"
    _, _, workload, plan = _read(tmp_path, fixed)
    shape = workload.fixed
    assert (shape.input_tokens, shape.output_tokens, shape.sessions) == (100, 50, 7)
    assert plan.output == "recorded"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give a load: --concurrency C, --rate R or --arrivals trace"),
        ("--concurrency 0", "'0' is not a number of lanes"),
        ("--concurrency 2 --rate 1", "--concurrency is a closed loop and takes no --rate"),
        ("--concurrency 2 --arrivals poisson", "--concurrency is a closed loop"),
        ("--rate 0", "--rate is 0.0, it must be from 0.000001 to 1,000,000 ("),
        ("--rate 1 --arrivals gamma --burstiness 1e308", "--burstiness is 1e+308, it must be from"),
        ("--arrivals steps --steps 1e-9x1", "it must be from 0.000001 to 1,000,000 ("),
        ("--rate nan", "--rate is nan, it must be a finite number"),
        ("--rate 1 --burstiness 2", "--burstiness is for --arrivals gamma; give both"),
        ("--rate 1 --arrivals gamma", "--arrivals gamma needs --burstiness; give it"),
        ("--rate 1 --arrivals trace", "--arrivals trace takes no --rate; leave it out"),
        ("--rate 1 --steps 1x1", "--steps is for --arrivals steps; give both"),
        ("--arrivals steps", "--arrivals steps needs --steps; give it"),
        ("--arrivals steps --steps 1,2", "'1,2' is not RATExSECONDS"),
        ("--arrivals constant", "--arrivals constant needs --rate; give it"),
        ("--rate 1 --jitter 2", "--jitter is for --arrivals trace; give both"),
        ("--rate 1 --start random_turn", "--start is for the lanes of --concurrency"),
        ("--rate 1 --stagger 2", "--stagger is for the lanes of --concurrency"),
        ("--concurrency 1 --fixed-input 9", "needs both --fixed-input and --fixed-output"),
        ("--concurrency 1 --fixed-sessions 9", "needs both --fixed-input and --fixed-output"),
        ("--concurrency 1 --fixed-input 9 --fixed-output 9 --trace x", "give one of them"),
        (
            "--concurrency 1 --fixed-input 9 --fixed-output 9 --tokenizer x --output natural",
            "leave --output natural out",
        ),
        (
            "--concurrency 1 --fixed-input 9 --fixed-output 9 --tokenizer x --api completions",
            "--fixed-input counts the chat template",
        ),
        (
            "--concurrency 1 --fixed-input 9 --fixed-output 9 --tokenizer x --max-context 5",
            "are for a --trace",
        ),
        (
            "--concurrency 1 --fixed-input 0 --fixed-output 9 --tokenizer x",
            "--fixed-input is 0, it must be greater than or equal to 1",
        ),
        ("--concurrency 1 --think-cap 3", "--think-cap caps nothing without a --think-factor"),
        ("--concurrency 1 --cancel-within 3", "--cancel-within needs a --cancel-share"),
        (
            "--concurrency 1 --cancel-share 2",
            "--cancel-share is 2.0, it must be less than or equal to 1",
        ),
        ("--concurrency 1 --window 0", "--window is 0.0, it must be a finite number above 0"),
        ("--concurrency 1 --drain -1", "--drain is -1.0, it must be a finite number from 0 on"),
        ("--concurrency 1 --processes 0", "argument --processes: '0' is no number of client"),
        ("--concurrency 1 --processes 65", "client processes; give auto or 1 to 64"),
        ("--concurrency 1 --processes 1.5", "'1.5' is no number of client processes"),
        ("--concurrency 1 --processes many", "'many' is no number of client processes"),
        ("--concurrency 1 --bogus", "unrecognized arguments: --bogus"),
        ("--concurrency 1 --win 5", "unrecognized arguments: --win 5"),
        ("--conc 1", "unrecognized arguments: --conc 1"),
        ("--concurrency 9999999999", "--concurrency: '9999999999' is not a number of lanes"),
        ("--concurrency 1 --seed x", "argument --seed: 'x' is not a whole number, as 12"),
        ("--concurrency 1 --window x", "argument --window: 'x' is not a number, as 1.5"),
        ("--concurrency 1 --window inf", "--window is inf, it must be a finite number above 0"),
        ("--concurrency 1 --max-context 0", "--max-context is 0, it must be greater than or"),
        ("--concurrency 1 --stagger -1", "--stagger is -1.0, it must be greater than or equal"),
        ("--arrivals trace --jitter -1", "--jitter is -1.0, it must be greater than or equal"),
        ("--arrivals trace --time-scale 0", "--time-scale is 0.0, it must be greater than 0"),
        ("--time-scale 2", "--time-scale is for --arrivals trace; give both"),
        ("--arrivals steps --steps 1x1 --rate 2", "--arrivals steps takes no --rate; leave it"),
    ],
)
def test_a_wrong_combination_is_one_sentence_and_nothing_is_written(tmp_path, capsys, text, said):
    with pytest.raises(SystemExit) as end:
        cli([*BASE, "--out", str(tmp_path / "out"), *text.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and said in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("load", [["--concurrency", "1"], ["--rate", "1"]])
def test_what_answers_and_is_no_http_server_is_one_sentence(tmp_path, capsys, load):
    def answer(connection):
        with contextlib.suppress(OSError):
            connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")
            connection.recv(65536)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    answer(server.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        out = str(tmp_path / "out")
        assert cli(["--url", url, "--model", "m", "--out", out, *load]) == 1
        server.shutdown(socket.SHUT_RDWR)
    error = capsys.readouterr().err
    assert "no HTTP server" in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


def test_every_field_has_its_option():
    fields = {k for m in (OpenLoad, Workload) for k in m.model_fields}
    fields |= {f"fixed.{k}" for k in FixedShape.model_fields}
    fields |= {f.name for f in dataclasses.fields(Plan)}
    choices = {
        "arrivals",
        "trace",
        "fixed",
        "output",
        "start",
        "id",
        "title",
    }  # checked by argparse
    assert fields - choices - options.OPTIONS.keys() <= set(ParamsFile.model_fields)
    known = {o for action in options.parser()._actions for o in action.option_strings}
    assert set(options.OPTIONS.values()) <= known


@pytest.mark.parametrize(
    ("typed", "used"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000"),
        ("http://127.0.0.1:30000/", "http://127.0.0.1:30000"),
        ("http://127.0.0.1:30000/v1", "http://127.0.0.1:30000"),
        ("http://127.0.0.1:30000/v1//", "http://127.0.0.1:30000"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("http://h:1/v1/completions/", "http://h:1"),
        ("127.0.0.1:30000", "http://127.0.0.1:30000"),
        ("localhost:30000/v1", "http://localhost:30000"),
        ("my_server", "http://my_server"),
        ("https://gate.example.org/team/v1", "https://gate.example.org/team"),
        ("http://[::1]:30000/v1", "http://[::1]:30000"),
    ],
)
def test_an_address_may_be_typed_as_other_clients_want_it(tmp_path, typed, used):
    argv = ["--url", typed, "--model", "m", "--out", str(tmp_path / "out"), "--concurrency", "1"]
    assert options.read(argv)[0].url == used


@pytest.mark.parametrize(
    "typed",
    ["", "/", "ftp://h:1", "http://", "http://:1", "http://h:0", "http://h:99999", "http://h:x",
     "http://h h:1", "http://a..b:1", "http://" + "a" * 64, "http://me:pw@h:1", "http://h:1?x=1",
     "http://h:1#x", "http://h:1/a b", "::1", "http:/h:1", "http:///v1", "http://münchen:1"],
)  # fmt: skip
def test_what_is_no_address_is_one_sentence(tmp_path, capsys, typed):
    argv = ["--url", typed, "--model", "m", "--out", str(tmp_path / "out"), "--concurrency", "1"]
    with pytest.raises(SystemExit) as end:
        cli(argv)
    error = capsys.readouterr().err
    assert end.value.code == 2 and "argument --url: " in error and error.count("\n") == 1, error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--concurrency 1 --trace nowhere.jsonl", "nowhere.jsonl"),
        ("--rate 1000 --window 600", "starts"),
        ("--arrivals trace", "has no recorded start time"),
        ("--concurrency 1 --fixed-input 9 --fixed-output 9", "needs the served model's tokenizer"),
        ("--concurrency 1", "is the server up"),
        ("--rate 1", "is the server up"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence_and_nothing_is_written(
    tmp_path, capsys, text, said
):
    assert cli([*BASE, "--out", str(tmp_path / "out"), *text.split()]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())

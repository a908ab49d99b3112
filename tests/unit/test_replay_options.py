"""The command line of a replay: what it means, and wrong combinations in one sentence."""

from __future__ import annotations

import pytest

from kvtop_lib.params import OpenLoad
from kvtop_lib.replay import options
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
        ("--rate 0", "rate: Input should be greater than 0"),
        ("--rate nan", "rate: Input should be a finite number"),
        ("--rate 1 --burstiness 2", "poisson arrivals do not take burstiness"),
        ("--rate 1 --arrivals gamma", "gamma arrivals need burstiness"),
        ("--rate 1 --arrivals trace", "trace arrivals do not take rate"),
        ("--rate 1 --steps 1x1", "poisson arrivals do not take steps"),
        ("--arrivals steps", "steps arrivals need steps"),
        ("--arrivals steps --steps 1,2", "'1,2' is not RATExSECONDS"),
        ("--arrivals constant", "constant arrivals need rate"),
        ("--rate 1 --jitter 2", "poisson arrivals do not take jitter_s"),
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
            "fixed.input_tokens: Input should be greater than or equal to 1",
        ),
        ("--concurrency 1 --think-cap 3", "--think-cap caps nothing without a --think-factor"),
        ("--concurrency 1 --cancel-within 3", "--cancel-within needs a --cancel-share"),
        ("--concurrency 1 --cancel-share 2", "cancel_share: Input should be less than or equal"),
        ("--concurrency 1 --window 0", "window_s is 0.0, it must be more than 0"),
        ("--concurrency 1 --drain -1", "drain_s is -1.0, it must be 0 or more"),
        ("--concurrency 1 --bogus", "unrecognized arguments: --bogus"),
    ],
)
def test_a_wrong_combination_is_one_sentence_and_nothing_is_written(tmp_path, capsys, text, said):
    with pytest.raises(SystemExit) as end:
        cli([*BASE, "--out", str(tmp_path / "out"), *text.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and said in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


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

"""The command line of an arm: what wins, and what an arm may not ask for."""

import os
import sys
from pathlib import Path

import pytest

from kvtop_lib.engine.command import RECORD, draft_args, server_args, server_command
from kvtop_lib.params import Arm, Draft, Model, Mtp
from kvtop_lib.sglang_plugin import plugin
from kvtop_lib.terms import KvtopError

MTP = Mtp(algorithm="EAGLE", draft="/d", token_map="map.pt")


def model(**fields) -> Model:
    base = {"id": "m", "title": "m", "checkpoint": "/m", "context_tokens": 512, "device": "cpu"}
    return Model(**{**base, **fields})


def arm(method="none", width=1, **fields) -> Arm:
    return Arm(id="a", title="a", draft=Draft(method=method, width=width), **fields)


def test_an_mtp_arm_asks_for_a_chain():
    assert draft_args(arm("mtp", 4), model(mtp=MTP)) == {
        "speculative-algorithm": "EAGLE",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
        "speculative-draft-model-path": "/d",
        "speculative-token-map": "/d/map.pt",
    }
    nextn = draft_args(arm("mtp", 2), model(mtp=Mtp(algorithm="NEXTN")))
    assert "speculative-draft-model-path" not in nextn


def test_the_baseline_asks_for_no_drafting():
    args = server_args(model(mtp=MTP), arm(), 1)
    assert not [flag for flag in args if flag.startswith("speculative")]


def test_an_ngram_arm_drafts_a_chain():
    args = draft_args(arm("ngram", 4), model())
    assert args["speculative-algorithm"] == "NGRAM"
    assert args["speculative-num-draft-tokens"] == 4
    assert args["speculative-ngram-max-bfs-breadth"] == 1


def test_mtp_without_a_layer_is_refused():
    with pytest.raises(KvtopError, match="arm 'a' drafts with MTP, model 'm' has no MTP layer"):
        server_command(model(), arm("mtp", 2), 1)


def test_the_arm_wins_over_the_model_and_false_takes_a_flag_out():
    m = model(server_args={"max-total-tokens": 100, "x": 1}, env={"A": "model", "B": "model"})
    a = arm(server_args={"max-total-tokens": 7, "sleep-on-idle": False}, env={"A": "arm"})
    command = server_command(m, a, 4321)
    assert command.args["max-total-tokens"] == 7
    assert command.args["x"] == 1
    assert "sleep-on-idle" not in command.args
    assert "--sleep-on-idle" not in command.argv
    assert (command.env["A"], command.env["B"]) == ("arm", "model")
    at = command.argv.index("--port")
    assert command.argv[at + 1] == "4321"
    assert command.argv[command.argv.index("--host") + 1] == "127.0.0.1"
    assert command.argv[command.argv.index("--enable-metrics") + 1].startswith("--")  # a bare flag


def test_an_arm_decides_whether_its_iterations_are_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on = server_command(model(), arm(), 1, Path("b1/iterations.jsonl"))
    assert on.env[RECORD] == str(tmp_path / "b1" / "iterations.jsonl")  # whatever the server's cwd
    off = server_command(model(), arm(record_iterations=False), 1, Path("iterations.jsonl"))
    assert RECORD not in off.env and RECORD not in server_command(model(), arm(), 1).env
    assert plugin.RECORD == RECORD


def test_the_cpu_stand_in_is_on_the_path_of_cpu_models_only(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    cpu = server_command(model(), arm(), 1)
    assert cpu.env["PYTHONPATH"].split(":")[0].endswith("sglang_plugin/cpu_site")
    assert cpu.env["PYTHONPATH"].split(":")[1] == "/mine"
    assert cpu.env["SGLANG_USE_CPU_ENGINE"] == "1"
    gpu = server_command(model(device="cuda"), arm(), 1)
    assert "PYTHONPATH" not in gpu.env
    assert "SGLANG_USE_CPU_ENGINE" not in gpu.env
    assert "attention-backend" not in gpu.args
    assert gpu.env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)

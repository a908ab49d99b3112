"""A block resumes: finished points stay, interrupted ones are measured, failed ones when asked."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kvtop_lib import block as block_module
from kvtop_lib import paths
from kvtop_lib.block import Block
from kvtop_lib.provenance import machine_state
from kvtop_lib.store import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))
import checkout  # noqa: E402


class Server:
    """Counts what a block does to it."""

    url, flushed, stopped, startup_s = "http://x", 0, 0, 1.0
    iterations_file, alive = None, True
    iterations_file = None

    def flush_cache(self) -> None:
        self.flushed += 1

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def play(tmp_path, monkeypatch):
    """A block whose replay writes what is asked for; `play.status` is the next outcome."""
    root = checkout.make(tmp_path, monkeypatch)
    outcome = {"status": "ok", "launched": []}

    def replay(url, model, sessions, c, plan, seed, out_dir, *, labels, **more):
        out_dir.mkdir(parents=True)
        (out_dir / "recording.json").write_text(json.dumps(labels))
        if outcome["status"] == "aborted":
            raise KeyboardInterrupt

    def derive(folder, targets):
        labels = json.loads((folder / "recording.json").read_text())
        status = outcome["status"]
        return {**labels, "status": status, "reason": "" if status == "ok" else status}

    def launch(model, arm, folder, expected_s):
        outcome["launched"].append(Path(folder).name)
        return Server()

    monkeypatch.setattr(block_module, "run_point", replay)
    monkeypatch.setattr(block_module, "derive", derive)
    monkeypatch.setattr(block_module.Server, "launch", launch)
    monkeypatch.setattr(block_module, "deployment", lambda *args: {"arm": "baseline"})
    outcome["make"] = lambda key="k": Block(root / "run", "fake", "baseline", 1, key)
    return outcome


def test_a_finished_point_is_never_measured_again(play):
    one = play["make"]()
    server = one.launch()
    assert one.loads == [1, 2]
    one.measure(server, 1)
    again = play["make"]()  # after a kill: the same block, another launch
    server = again.launch()
    assert again.measure(server, 1)["line"] == 1 and server.flushed == 0
    again.measure(server, 2)
    assert server.flushed == 1
    assert play["launched"] == ["b1", "launch2"]
    assert [x["load"] for x in Run(one.records.path).lines()] == ["c1", "c2"]


def test_an_interrupted_point_is_measured_again_and_the_attempt_is_kept(play):
    one, play["status"] = play["make"](), "aborted"
    with pytest.raises(KeyboardInterrupt):
        one.measure(Server(), 1)
    play["status"] = "ok"
    play["make"]().measure(Server(), 1)
    lines = one.records.lines()
    assert [(x["status"], x["attempt"]) for x in lines] == [("aborted", 1), ("ok", 2)]
    assert one.records.results().status.tolist() == ["ok"]


def test_a_failed_point_is_measured_again_only_when_asked(play):
    one, play["status"] = play["make"](), "invalid"
    one.measure(Server(), 1)
    play["status"] = "ok"
    server = Server()
    assert play["make"]().measure(server, 1)["status"] == "invalid" and server.flushed == 0
    (one.folder / "retry").write_text("c1\n")
    assert play["make"]().measure(server, 1)["status"] == "ok"
    assert play["make"]().measure(server, 1)["attempt"] == 2 and server.flushed == 1


def test_another_key_is_another_measurement(play):
    play["make"]("k1").measure(Server(), 1)
    server = Server()
    play["make"]("k2").measure(server, 1)
    assert server.flushed == 1


def test_the_state_of_the_machine_stands_beside_the_block(play):
    one = play["make"]()
    one.end(one.launch())
    found = json.loads((one.folder / "machine.json").read_text())
    assert found["launch"] == 1 and found.keys() >= {"before", "after"}
    second = play["make"]()
    second.end(second.launch())
    assert json.loads((one.folder / "machine2.json").read_text())["launch"] == 2
    state = machine_state()
    assert len(state["load_average"]) == 3 and state["memory_available_bytes"] > 0
    assert {"cpu_hz", "throttle_events", "temperature_c"} <= state.keys()


def test_made_up_tokens_do_not_decide_the_length_of_an_answer(play):
    """The workload stops naturally; an arm that simulates acceptance has the recorded lengths."""
    one = play["make"]()
    assert one.plan.output == "natural"
    arm = {
        "title": "All (simulated)",
        "draft": {"method": "mtp", "width": 2, "simulated_accept_len": 2},
    }
    folder = paths.params_dir()
    (folder / "arms" / "all.yaml").write_text(json.dumps(arm))  # JSON is YAML
    profile = yaml.safe_load((folder / "profiles" / "fake.yaml").read_text())
    (folder / "profiles" / "fake.yaml").write_text(
        json.dumps(profile | {"arms": ["baseline", "all"]})
    )
    made_up = Block(one.records.path, "fake", "all", 1)
    assert made_up.plan == replace(one.plan, output="recorded")

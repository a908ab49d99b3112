"""Delays, records of the peers, and verdicts of the client benchmark, against tables by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from kvtop_lib.bench import children, client, peer_env, peer_records, watch
from kvtop_lib.bench.delays import added, failed
from kvtop_lib.bench.driver import Seen
from kvtop_lib.bench.memory import bytes_per_chunk
from kvtop_lib.bench.peers import Wave, peers
from kvtop_lib.bench.rows import Row
from kvtop_lib.bench.table import judged, markdown
from kvtop_lib.terms import KvtopError

LOG = [
    {"number": 0, "x_request_id": "a", "sent_ns": [1_000_000_000, 1_100_000_000, 1_200_000_000]},
    {"number": 1, "x_request_id": "b", "sent_ns": [1_050_000_000, 1_150_000_000]},
]


def test_delays_are_received_minus_sent():
    seen = [Seen(1, "ok", [1.051, 1.153]), Seen(0, "ok", [1.002, 1.102, 1.204])]
    found = added(seen, LOG)
    assert found.chunks == 5
    assert found.p50_s == pytest.approx(0.002)  # 1, 2, 2, 3, 4 ms
    assert found.p99_s == pytest.approx(0.00396)
    assert not found.at_least


def test_a_folder_that_cannot_be_written_to_is_told_before_a_wave(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(client, "bench", lambda *a: pytest.fail("a wave was run"))
    (tmp_path / "file").write_text("")
    for outputs, more in (("file", []), ("outputs", ["--keep", str(tmp_path / "file")])):
        monkeypatch.setenv("KVTOP_OUTPUTS", str(tmp_path / outputs))
        assert client.main(["--only", "kvtop", *more]) == 1
        assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--many", "-1"], ["--seconds", "0"], ["--seconds", "nan"], ["--streams", "1,x"]]
)
def test_a_wrong_load_is_one_sentence_about_its_option(wrong, monkeypatch, capsys):
    monkeypatch.setattr(client, "bench", lambda *a: pytest.fail("a wave was run"))
    assert client.main(["--only", "kvtop", *wrong]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {wrong[0]} ") and error.count("\n") == 1


def test_relative_times_give_the_delay_above_the_least_one_of_the_stream():
    found = added([Seen(0, "ok", [7.0, 7.1, 7.203])], LOG, relative=True)
    assert (found.p50_s, found.at_least) == (pytest.approx(0.0, abs=1e-9), True)
    assert found.p99_s == pytest.approx(0.00294)


def test_events_behind_the_last_chunk_are_no_chunks():
    assert added([Seen(1, "ok", [1.051, 1.151, 1.152])], LOG).chunks == 2
    assert added([Seen(1, "ok", [1.051, 1.151, 1.152, 1.152, 1.152])], LOG) is None


def test_requests_whose_chunks_cannot_be_told_apart_are_left_out():
    seen = [Seen(0, "ok", [1.0]), Seen(None, "refused", []), Seen(9, "ok", [1.0])]
    assert added(seen, LOG) is None
    assert failed(seen, 4) == 2  # one refused, one not in the records


def test_sglangs_records(tmp_path):
    rows = {
        "generated_texts": ["#1 tok ", ""],
        "ttfts": [0.5, 0.0],
        "itls": [[0.1], []],
        "errors": ["", "refused"],
    }
    (tmp_path / "records.jsonl").write_text(json.dumps(rows) + "\n")
    good, bad = peer_records.sglang(tmp_path)
    assert good == Seen(1, "ok", [0.5, pytest.approx(0.6)])
    assert (bad.number, bad.recv_s) == (None, [])
    assert "refused" in bad.status


def test_aiperfs_records(tmp_path):
    wall = time.time_ns()
    metrics = {
        "time_to_first_token": {"value": 20.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [100.0, 101.0], "unit": "ms"},
    }
    rows = [
        {"metadata": {"request_start_ns": wall, "x_request_id": "b"}, "metrics": metrics},
        {"metadata": {"request_start_ns": wall, "x_request_id": "c"}, "error": {"message": "no"}},
    ]
    place = tmp_path / "artifacts" / "run"
    place.mkdir(parents=True)
    (place / "profile_export.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    good, bad = peer_records.with_numbers(peer_records.aiperf(tmp_path), LOG)
    assert (good.number, good.status, bad.number) == (1, "ok", None)
    assert bad.status != "ok"
    steps = [t - good.recv_s[0] for t in good.recv_s]
    assert steps == pytest.approx([0.0, 0.1, 0.201], abs=1e-5)
    assert good.recv_s[0] == pytest.approx(wall / 1e9 - peer_records.monotonic_offset_s() + 0.02)


def test_guidellms_records_know_the_first_and_the_last_chunk(tmp_path):
    wall = time.time()
    timings = {"first_token_iteration": wall, "last_token_iteration": wall + 0.2}
    row = {"output": "#0 tok tok ", "info": {"timings": timings}}
    report = {"benchmarks": [{"requests": {"successful": [row], "errored": [{}], "total": None}}]}
    (tmp_path / "records.json").write_text(json.dumps(report))
    good, bad = peer_records.guidellm(tmp_path)
    assert (good.number, good.status, len(good.recv_s)) == (0, "ok", 2)
    assert (bad.number, bad.recv_s) == (None, [])
    assert [len(r["sent_ns"]) for r in peer_records.ends_of(LOG)] == [2, 2]


def test_cpu_of_processes_that_were_left_behind_is_counted(tmp_path):
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    # the parent starts a process, does not wait for it, and ends
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    out = tmp_path / "life.json"
    command = [sys.executable, "-I", children.__file__, str(out), sys.executable, "-c", parent]
    subprocess.run(command, check=True)
    told = json.loads(out.read_text())
    assert told["cpu_s"] >= 0.2
    assert told["returncode"] == 0
    failing = [*command[:5], "-c", "raise SystemExit(3)"]
    assert subprocess.run(failing).returncode == 3


def test_the_cpu_clock_of_a_process_is_that_process_own():
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint('spun', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        used = watch.cpu_clock_s(child.pid)
        assert watch.proportional_bytes(child.pid) > 0
        child.communicate("\n")
    assert used >= 0.2
    assert watch.cpu_clock_s(child.pid) == 0.0


def test_a_chunk_leaves_little_behind():
    assert 0 < bytes_per_chunk() <= 100


def row(peer: str, streams: int, us: float, own: bool = False, **more) -> Row:
    fields = {"own_us": us} if own else {"stream_us": us}
    return Row(peer, peer, streams, 300, **fields, **more)


ROWS = [
    row("floor", 128, 4.0, True, p50_s=0.0001, p99_s=0.0004),
    row("kvtop", 128, 7.0, True, p50_s=0.0002, p99_s=0.0012, failed=0, raw_peak_bytes=2**20),
    row("sglang", 128, 70.0, p99_s=0.003, at_least=True, core_share=0.95),
    row("aiperf", 128, 28.0),
    Row("guidellm", "guidellm", 128, 300, reason="it ended with code 1: no"),
    row("kvtop", 2000, 9.0, True, failed=1),
]


def test_goals_are_judged_by_the_numbers():
    met = {goal: (measured, verdict) for goal, measured, verdict in judged(ROWS, 13.0)}
    assert met["at most 8 us of CPU per chunk at every load"] == ("9 us", "no")
    near = met["p99 delay at 128 streams within 1 ms of the bare reader's"]
    assert near == ("0.8 ms more", "yes")
    assert met["no failed request at 2000 streams"] == ("1 failed", "no")
    assert met["at most 100 bytes per chunk after parsing"] == ("13 bytes", "yes")
    assert met["5 times leaner than sglang"][1] == "yes"
    assert met["5 times leaner than aiperf"] == ("4.0 times, at the least of its loads", "no")
    assert met["5 times leaner than guidellm"] == ("not measured", "–")


def test_the_table_names_what_is_missing_and_what_is_a_bound():
    text = markdown(ROWS, None)
    assert "guidellm, 128 streams: it ended with code 1: no" in text
    assert "sglang, 128 streams: saturated" in text
    assert "≥ 3.00" in text
    assert "not available" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ")}
    assert widths == {13, 4}


def test_every_client_is_asked_for_the_same_wave(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_env, "ensure", lambda name: Path("bin") / name)
    for peer in peers().values():
        command = " ".join(peer.command(Wave("http://127.0.0.1:7", 32, 300, tmp_path)))
        assert "http://127.0.0.1:7" in command
        assert "32" in command
        assert "300" in command


def test_a_folder_as_tokenizer_and_the_model_s_name_suit_every_client(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    told = {p.id: p.environment().get("HF_HUB_OFFLINE") for p in peers().values()}
    assert told.pop("aiperf") is None  # offline, it takes any name for one of a hub
    assert set(told.values()) == {"1"}
    monkeypatch.setattr(peer_env, "ensure", lambda name: tmp_path)
    backend = peers()["guidellm"].command(Wave("http://x", 2, 30, tmp_path))
    fields = dict(f.split("=", 1) for f in backend[backend.index("--backend") + 1].split(","))
    assert yaml.safe_load(fields["model"]) == "null-server"  # it reads its options as YAML


def test_waves_cover_every_client_and_load():
    chosen = list(peers().values())
    waves = client.plan(chosen, [1, 128], 2000)
    assert len(waves) == 2 * len(chosen) + 2 + 2
    assert {p.id for p, n, _ in waves if n == 2000} == {"floor", "kvtop"}
    assert {p.id for p, n, together in waves if together} == {"floor", "kvtop"}


def test_wrong_options_are_refused_in_one_sentence(capsys):
    for options in (["--only", "nobody"], ["--streams", "1,x"], ["--streams", "0"]):
        assert client.main(options) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_a_peer_that_cannot_be_installed_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peer_env, "LISTS", tmp_path)
    (tmp_path / "ghost.txt").write_text("./no-such-folder-here\n")
    with pytest.raises(KvtopError, match="ghost could not be installed"):
        peer_env.ensure("ghost")


def test_lists_of_peers_are_pinned_and_bring_no_torch():
    lists = sorted(Path(peer_env.LISTS).glob("*.txt"))
    assert [f.stem for f in lists] == ["aiperf", "guidellm", "sglang"]
    for file in lists:
        lines = [s for s in file.read_text().splitlines() if s and not s.startswith("#")]
        assert all("==" in s for s in lines)
        names = {s.partition("==")[0].lower() for s in lines}
        assert file.stem in names or file.stem in peer_env.BORROWING
        assert not any(n == "torch" or n.startswith("nvidia-c") for n in names)

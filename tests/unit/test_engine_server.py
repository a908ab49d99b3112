"""A server never outlives its parent, and says in one sentence why it ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtop_lib.caller import CALLER
from kvtop_lib.engine import server as server_module
from kvtop_lib.engine.client import free_port
from kvtop_lib.engine.command import MODULE, Command
from kvtop_lib.engine.deployment import changed_args, portable
from kvtop_lib.engine.lossless import greedy_outputs
from kvtop_lib.engine.server import Server
from kvtop_lib.terms import KvtopError

FAKE = str(Path(__file__).parent / "fake_server.py")
PARENT = """
import sys, time
from pathlib import Path
from test_engine_server import fake
with fake(Path(sys.argv[1])) as server:
    server.wait_ready(300)
    print("ready", flush=True)
    time.sleep(120)
"""


SITE = "TEST_SITE"  # folder of a package in place of SGLang, where servers are to be forked


def fake(folder: Path, *flags: str, **own: str) -> Server:
    """A fake server below the real wrapper; its arm's own variables."""
    port = free_port("127.0.0.1")
    how, env = ("-S", FAKE), {}
    if site := os.environ.get(SITE):
        os.chdir(site)
        how, env = ("-m", MODULE), {"SGLANG_USE_CPU_ENGINE": "1"}
    argv = (sys.executable, *how, str(port), str(folder / "pids"), *flags)
    return Server(Command(args={}, argv=argv, env=env | own), port, folder, grace_s=0.5)


def write_site(folder: Path, launch: str) -> Path:
    """What a host imports, as small modules."""
    inside = {
        "__init__": "", "launch_server": launch, "srt/__init__": "",
        "srt/plugins": "_plugins_loaded = False", "srt/entrypoints/__init__": "",
        "srt/entrypoints/http_server": "import sglang.srt.plugins",
    }  # fmt: skip
    for name, text in inside.items():
        file = folder / "sglang" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


LAUNCH = f"""
import os
IMPORTED_IN = os.getpid()
if __name__ == "__main__":
    import runpy
    from sglang.launch_server import IMPORTED_IN
    print("imported in", IMPORTED_IN, flush=True)
    runpy.run_path({FAKE!r}, run_name="__main__")
"""


@pytest.fixture
def caller():
    """A process in the place of the make that everything runs below."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True, params=["anew", "forked"])
def started(request, tmp_path, monkeypatch, caller):
    """All of it holds for servers that are executed and for those that a host forks."""
    monkeypatch.delenv(CALLER, raising=False)
    if request.param == "forked":
        monkeypatch.setenv(CALLER, str(caller.pid))
        monkeypatch.setenv(SITE, str(write_site(tmp_path / "site", LAUNCH)))
        monkeypatch.chdir(tmp_path)  # back at the end, whatever `fake` does
    return request.param


def pids(folder: Path) -> list[int]:
    """The fake server, its stubborn child and its orphaned grandchild, once all have started."""
    for _ in range(200):
        found = [int(x) for x in (folder / "pids").read_text().split()]
        if len(found) == 3:
            return found
        time.sleep(0.05)
    raise AssertionError(f"only {found} started")


def living(numbers: list[int]) -> list[int]:
    alive = []
    for pid in numbers:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.append(pid)
    return alive


def assert_all_end(numbers: list[int], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while living(numbers) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = living(numbers)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"{left} of {numbers} outlived the parent"


def test_stop_ends_every_process(tmp_path, started):
    with fake(tmp_path) as server:
        server.wait_ready(300)
        assert server.warm == (started == "forked")
        numbers = pids(tmp_path)
        assert living(numbers) == numbers
        assert server.startup_s > 0
    assert not living(numbers)


@pytest.mark.parametrize("started", ["forked"], indirect=True)
def test_servers_of_one_caller_come_from_one_host_that_ends_with_it(tmp_path, started, caller):
    hosts = []
    for name in ("a", "b"):
        with fake(tmp_path / name) as server:
            server.wait_ready(300)
            hosts.append(int(server.log_file.read_text().split("imported in ")[1].split()[0]))
    assert hosts[0] == hosts[1] and living(hosts[:1]) == hosts[:1]
    assert "RuntimeWarning" not in server.log_file.read_text()
    caller.kill()
    assert_all_end(hosts[:1])


@pytest.mark.parametrize("started", ["forked"], indirect=True)
def test_an_arm_s_own_variable_is_there_at_import_and_no_other_arm_s(tmp_path, started):
    read = "import os\nAT_IMPORT = os.environ.get('OF_AN_ARM')\n" + LAUNCH
    read = read.replace("import IMPORTED_IN", "import IMPORTED_IN, AT_IMPORT")
    write_site(
        tmp_path / "site", read.replace("IMPORTED_IN, flush", "IMPORTED_IN, AT_IMPORT, flush")
    )
    for name, own, seen in (("a", {}, "None"), ("b", {"OF_AN_ARM": "-1"}, "-1"), ("c", {}, "None")):
        with fake(tmp_path / name, **own) as server:
            server.wait_ready(300)
            assert server.warm
            assert server.log_file.read_text().split("imported in ")[1].split()[1] == seen, name


@pytest.mark.parametrize("started", ["forked"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("raise ImportError('broken')", "the import failed: ImportError: broken"),
        ("import threading; threading.Timer(600, print).start()", "threads"),
    ],
)
def test_a_host_that_cannot_fork_costs_no_server_and_is_tried_once(tmp_path, started, fault, why):
    broken = f"""
import runpy
if __name__ == "__main__":
    runpy.run_path({FAKE!r}, run_name="__main__")
else:
    print("tried", file=open("tries", "a"))
    {fault}
"""
    write_site(tmp_path / "site", broken)
    for name in ("a", "b"):
        with fake(tmp_path / name) as server:
            server.wait_ready(300)
            assert not server.warm
            assert "not forked from a warm process" in server.log_file.read_text()
        assert not living(pids(tmp_path / name))
    assert why in server.log_file.read_text()
    assert (tmp_path / "site" / "tries").read_text() == "tried\n"


@pytest.mark.parametrize("started", ["forked"], indirect=True)
def test_who_hangs_up_while_a_server_starts_leaves_none(tmp_path, started):
    server = fake(tmp_path)
    server.wait_ready(300)
    numbers = pids(tmp_path)
    server._process._host.close()
    assert_all_end([server.pid, *numbers])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_the_parent(tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout.readline().strip() == "ready"
    numbers = pids(tmp_path)
    parent.send_signal(number)
    parent.wait(300)
    assert_all_end(numbers)


def test_a_killed_wrapper_takes_the_server_along(tmp_path):
    with fake(tmp_path) as server:
        server.wait_ready(300)
        numbers = pids(tmp_path)
        os.kill(server.pid, signal.SIGKILL)
        assert_all_end(numbers[:1])
        for pid in living(numbers):  # adopted by nobody we own
            os.kill(pid, signal.SIGKILL)


def test_a_server_that_ends_is_named_with_its_reason_and_leaves_nothing(tmp_path):
    server = fake(tmp_path, "--die")
    with pytest.raises(KvtopError, match="ended with code 1 .*ValueError: the flags do not fit"):
        server.wait_ready(300)
    assert_all_end(pids(tmp_path))


def test_nothing_is_asked_before_the_engine_s_own_warm_up_is_over(tmp_path):
    with fake(tmp_path, "--cold", "3") as server:
        server.wait_ready(300)
        assert server.resolved()["early"] == 0


def test_a_start_is_announced_before_the_wait(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text("{}")
    argv = (sys.executable, "-c", "")
    monkeypatch.setattr(server_module, "server_command", lambda *_: Command({}, argv, {}))
    said = []
    monkeypatch.setattr(Server, "wait_ready", lambda *_: said.append(capsys.readouterr().out))
    model, arm = SimpleNamespace(id="m", path=tmp_path, builder=None), SimpleNamespace(id="mtp_w2")
    Server.launch(model, arm, tmp_path / "run", expected_s=12.4).stop()
    assert said == ["mtp_w2: starting the server (about 12 s)\n"]


def test_a_server_that_never_answers_is_given_up(tmp_path):
    port = free_port("127.0.0.1")
    argv = (sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(300)")
    with Server(Command(args={}, argv=argv, env={}), port, tmp_path, grace_s=0.5) as server:
        deadline = time.monotonic() + 60
        while "loading" not in server.log_file.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(KvtopError, match="did not answer a request within 1 s: loading"):
            server.wait_ready(1)


def test_flush_waits_for_an_idle_server_and_info_hides_secrets(tmp_path):
    with fake(tmp_path, "--busy", "2") as server:
        server.wait_ready(300)
        server.flush_cache()
        assert server.resolved() == {"max_total_num_tokens": 1234, "dtype": "float16"}
        assert server.memory_bytes() > 1_000_000
        outputs = greedy_outputs(server.url, [[{"role": "user", "content": "a bb ccc"}]] * 9)
    assert [o.ids for o in outputs] == [(1, 2, 3)] * 9
    assert outputs[0].text == "1 2 3"


def test_flush_gives_up_with_a_reason(tmp_path):
    with fake(tmp_path, "--busy", "1000") as server:
        server.wait_ready(300)
        with pytest.raises(KvtopError, match="not flushed in 1 s: .*HTTP 400"):
            server.flush_cache(timeout_s=1)


def test_changed_args_and_portable_records(monkeypatch):
    monkeypatch.setenv("KVTOP_ROOT", "/x/repo")
    monkeypatch.setenv("KVTOP_CACHE", "/x/repo/.cache/kvtop")
    resolved = {"speculative_num_draft_tokens": 2, "port": 9}
    asked = {"speculative-num-draft-tokens": 4, "port": 9, "absent": 1}
    assert changed_args(asked, resolved) == {"speculative-num-draft-tokens": {"asked": 4, "got": 2}}
    record = {"a": ["/x/repo/.cache/kvtop/m", "/x/repo/params"], "b": 1}
    assert portable(record) == {"a": ["<cache>/m", "<repo>/params"], "b": 1}

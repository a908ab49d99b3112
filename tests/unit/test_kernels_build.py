"""Building the library: cached, safe for several processes, replaced by torch where impossible."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from kernels_help import draw, library

from kvtop_lib.sglang_plugin.kernels import build, lib


@pytest.fixture
def needs_compiler():
    if isinstance(library("best"), Exception):
        pytest.skip(str(library("best")))


def python(code: str, **env: str) -> subprocess.CompletedProcess:
    """Run a snippet in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        text=True,
        timeout=600,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


LINEAR = """
    import logging, torch
    logging.basicConfig()
    from kvtop_lib.sglang_plugin import kernels
    x = torch.arange(6.0).view(2, 3)
    for _ in range(2):
        print(kernels.linear(x, kernels.pack_weight(torch.eye(3).bfloat16() * 2)).tolist())
    print(kernels.native() is None)
"""
DOUBLED = "[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]"


def test_four_processes_build_at_once(tmp_path, needs_compiler):
    env = {**os.environ, "KVTOP_CACHE": str(tmp_path)}
    code = f"""if True:
        from importlib import util  # the module alone: importing torch four times takes longer
        spec = util.spec_from_file_location("build", {build.__file__!r})
        spec.loader.exec_module(module := util.module_from_spec(spec))
        module.library()"""
    running = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(4)]
    assert [p.wait(timeout=600) for p in running] == [0] * 4
    assert sorted(p.suffix for p in (tmp_path / "kernels").iterdir()) == [".lock", ".so"]


def test_builds_once_and_again_when_the_sources_change(tmp_path, monkeypatch, needs_compiler):
    monkeypatch.setenv("KVTOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "kernels.c").write_text("int one(void) { return 1; }")
    first = build.library()
    stamp = first.stat().st_mtime_ns
    assert build.library() == first
    assert first.stat().st_mtime_ns == stamp
    (tmp_path / "kernels.c").write_text("int two(void) { return 2; }")
    assert build.library() != first
    (tmp_path / "kernels.c").write_text("int three(void) { return")
    with pytest.raises(build.BuildError, match="compiling the kernels failed"):
        build.library()


def test_without_a_compiler_torch_does_it_and_says_so_once(tmp_path):
    done = python(LINEAR, PATH=str(tmp_path), CC="", KVTOP_CACHE=str(tmp_path))
    assert done.stdout.splitlines() == [DOUBLED, DOUBLED, "True"], done.stderr
    assert done.stderr.count("torch is several times slower") == 1
    assert "install gcc" in done.stderr


def test_torch_on_request():
    done = python(LINEAR, KVTOP_KERNELS="torch")
    assert done.stdout.splitlines() == [DOUBLED, DOUBLED, "True"], done.stderr


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KVTOP_THREADS", "3")
    assert lib.default_threads() == 3
    monkeypatch.delenv("KVTOP_THREADS")
    assert lib.default_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("KVTOP_THREADS", "many")
    with pytest.raises(ValueError, match="KVTOP_THREADS"):
        lib.default_threads()


def test_a_forked_child_computes_and_an_idle_process_uses_no_cpu(needs_compiler):
    done = python("""
        import os, time, torch
        from kvtop_lib.sglang_plugin import kernels
        kernels.set_threads(2)
        packed = kernels.pack_weight(torch.ones(640, 64).bfloat16())
        x = torch.ones(200, 64)
        kernels.linear(x, packed)
        if not (child := os.fork()):
            ok = bool((kernels.linear(x, packed) == 64).all())
            os._exit(0 if ok else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(1.0)
        print(time.process_time() - before < 0.05)
    """)
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_two_python_threads_at_once(needs_compiler):
    from concurrent.futures import ThreadPoolExecutor

    from kvtop_lib.sglang_plugin import kernels

    packed, x = kernels.pack_weight(draw(320, 64).bfloat16()), draw(40, 64)
    with lib.using(library("best")):
        kernels.set_threads(2)
        truth = kernels.linear(x, packed)
        with ThreadPoolExecutor(4) as executor:
            results = list(executor.map(lambda _: kernels.linear(x, packed), range(400)))
    assert all(torch.equal(r, truth) for r in results)

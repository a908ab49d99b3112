"""How SGLang's processes start on a CPU: forked by a process of one thread, spawned otherwise.

Each case runs in a process of its own, since a start method belongs to one.
"""

import subprocess
import sys

PREPARE = """
import multiprocessing, sys, threading
import sglang.srt.plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from kvtop_lib.sglang_plugin import hooks_start, plugin

def child(pipe):
    pipe.send((sglang.srt.plugins._plugins_loaded, plugin.runs_models()))

def run_detokenizer_process(pipe):
    child(pipe)

def asked(target):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(theirs,))
    process.start()
    answer = ours.recv()
    process.join()
    return answer

if __name__ == "__main__":
    sglang.srt.plugins._plugins_loaded = True
    sys.modules["sglang.srt.managers.scheduler"] = sglang  # what a server has imported
    hooks_start.register()
    HookRegistry.apply_hooks()
"""


def said(tmp_path, body: str) -> str:
    """What a process prints that runs `body` with the hook in place."""
    file = tmp_path / "first.py"
    file.write_text(PREPARE + "".join(f"    {line}\n" for line in body.splitlines()))
    done = subprocess.run([sys.executable, file], text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[0]


def test_where_sglang_would_spawn_it_forks_and_children_load_plug_ins_for_their_part(tmp_path):
    body = (
        'multiprocessing.set_start_method("spawn", force=True)\n'
        "print(multiprocessing.get_start_method(), asked(child), asked(run_detokenizer_process))"
    )
    assert said(tmp_path, body) == "fork (False, True) (False, False)"


def test_a_second_thread_keeps_it_spawning(tmp_path):
    body = (
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        'multiprocessing.set_start_method("spawn", force=True)\n'
        "print(multiprocessing.get_start_method())"
    )
    assert said(tmp_path, body) == "spawn"

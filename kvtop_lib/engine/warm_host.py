"""A process that has imported SGLang and forks servers: ``python -P warm_host.py FD CALLER``.

Importing is most of a server's start on few cores. FD is a listening Unix socket; every connection
asks for one server (`kvtop_lib.engine.warm`) and is told its process id and, at its end, its exit
code. What is imported here is what a server imports before it reads its flags and before plug-ins
are loaded, so a forked server goes on exactly where one that was started anew would be by then.

The host ends with the process CALLER. Servers do not depend on it: each runs below a wrapper of its
own (`supervise`), which is forked here too.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path

MODULE = "sglang.launch_server"
LIMIT = 1 << 20  # bytes of a request
ASK_S = 10.0  # a connection that asks for nothing is closed after so long


def beside(name: str):
    """A module of this folder, without importing the whole package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


supervise = beside("supervise")


class Forked:
    """A server that was forked rather than executed; used like a ``subprocess.Popen``."""

    def __init__(self, argv: list[str]) -> None:
        self.returncode: int | None = None
        wrapper = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            _become(lambda: _serve(argv, wrapper))

    def poll(self) -> int | None:
        """Exit code (negative: signal), None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _become(work) -> None:
    """In a forked child: do the work and end, never to return to what the parent was doing."""
    code = 1
    try:
        code = work()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - said in the log, as an interpreter would
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def _serve(argv: list[str], wrapper: int) -> int:
    supervise.in_child(wrapper)
    signal.set_wakeup_fd(-1)
    for number in supervise.SIGNALS:  # as after an exec
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-m", *argv]
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # imported before
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    return 0


def _wrap(asked: dict, log: int) -> int:
    """A wrapper with its server, in the place of one that was executed."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # the host's
    os.environ.clear()
    os.environ.update(asked["env"])
    return supervise.watch(lambda: Forked(asked["flags"]), asked["parent"], asked["grace"])


def _request(connection: socket.socket) -> tuple[dict, int] | None:
    """What a connection asks for and the log's descriptor; None when it asks for nothing."""
    connection.settimeout(ASK_S)
    room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    try:
        data, control, *_ = connection.recvmsg(LIMIT, room)
        (_, _, sent), *_ = control
        asked = json.loads(data), array.array("i", sent)[0]
    except (OSError, ValueError):
        return None
    if not _gone(connection):
        return asked
    os.close(asked[1])
    return None


def _gone(connection: socket.socket) -> bool:
    """Whether who asked has hung up; from here on nothing waits for the connection."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def serve(listener: socket.socket, caller: int) -> None:
    """Fork servers until the caller has ended."""
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> wrapper, who asked for it
    while True:
        asking = {c.fileno(): pid for pid, c in running.values() if c.fileno() >= 0}
        ready, *_ = select.select([listener, caller, *running, *asking], [], [])
        if caller in ready:
            return
        for done in set(ready) & set(running):
            pid, connection = running.pop(done)
            os.close(done)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            asking.pop(connection.fileno(), None)
            _tell(connection, {"code": code})
            connection.close()
        for number in set(ready) & set(asking):  # hung up: nobody will stop this server
            os.kill(asking[number], signal.SIGTERM)
            next(c for _, c in running.values() if c.fileno() == number).close()
        if listener in ready:
            _fork_for(listener.accept()[0], running)


def _fork_for(connection: socket.socket, running: dict[int, tuple[int, socket.socket]]) -> None:
    asked = _request(connection)
    if asked is None:
        return connection.close()
    pid = os.fork()
    if not pid:
        _become(lambda: _wrap(*asked))
    os.close(asked[1])
    running[os.pidfd_open(pid)] = pid, connection
    return _tell(connection, {"pid": pid})


def _tell(connection: socket.socket, what: dict) -> None:
    try:
        connection.send(json.dumps(what).encode())
    except OSError:
        pass  # whoever asked has ended; the wrapper sees that too


def main(argv: list[str]) -> int:
    """Import, then fork; 1 where a fork would not be safe, which ends the waiting connections."""
    if os.fork():
        os._exit(0)  # nobody's child: whoever starts servers sees those alone below it
    listener = socket.socket(fileno=int(argv[0]))
    try:
        caller = os.pidfd_open(int(argv[1]))
    except ProcessLookupError:
        return 0
    sys.path.insert(0, os.getcwd())  # where ``python -m`` looks first
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as the plug-in does, which is loaded later
    path = Path(listener.getsockname())
    try:
        if why := _import():
            path.with_suffix(".failed").write_text(why, encoding="utf-8")
        else:
            serve(listener, caller)
    finally:
        path.unlink(missing_ok=True)
        path.with_suffix(".log").unlink(missing_ok=True)
    return int(bool(why))


def _import() -> str:
    """Import what a server imports first; why a fork would not be safe, if it is not."""
    try:
        for name in (MODULE, "sglang.srt.entrypoints.http_server"):
            importlib.import_module(name)
    except Exception as e:
        return f"the import failed: {type(e).__name__}: {e}"
    if len(os.listdir("/proc/self/task")) > 1:
        return "the import has started threads"
    if sys.modules["sglang.srt.plugins"]._plugins_loaded:
        return "the import has loaded plug-ins"
    gc.collect()
    gc.freeze()  # a child's collector would copy every page
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

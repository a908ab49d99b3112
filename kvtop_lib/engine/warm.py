"""Servers forked from a process that has imported SGLang already (`warm_host`).

A run starts a server for every deployment and every block, and on few cores most of each start is
the same imports. Within one call of make, named by the variable `CALLER`, the first start that can
be forked brings up a host, and the others follow from it; it ends with that call. Without the
variable and on a GPU a server is started anew, and so it is where the host fails for whatever
reason. Values that may be read during import, and all that a command sets itself, name a host: an
arm with variables of its own gets one of its own, and no arm sees those of another.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from kvtop_lib.caller import CALLER
from kvtop_lib.engine.command import MODULE, Command

HOST = Path(__file__).with_name("warm_host.py")

IMPORT_S = 240.0
"""Longest wait for a host, after which a server is started anew."""

FAILED = ".failed"
"""Suffix of the file in which a host that cannot fork says why; it is not tried again."""

READ_LATER = "KVTOP_"
"""Prefix of the variables that are read when plug-ins are loaded, after the fork."""

_OF_IMPORTS = (
    "SGLANG_", "PYTHON", "TORCH", "TRITON", "OMP_", "MKL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_",
    "CUDA_", "LD_", "VIRTUAL_ENV",
)  # fmt: skip


class WarmProcess:
    """A wrapper that the host forked; used like the ``subprocess.Popen`` of one.

    Attributes
    ----------
    pid : of the wrapper.
    returncode : exit code; None while it runs, -1 when the host was gone before it could tell.
    """

    def __init__(self, host: socket.socket, pid: int) -> None:
        self.pid, self.returncode, self._host = pid, None, host
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            After ``timeout`` seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(MODULE, timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the wrapper; nothing happens when it has ended."""
        if self.returncode is None:
            try:
                signal.pidfd_send_signal(self._ended, number)
            except ProcessLookupError:
                pass

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            told = _told(self._host)
            self.returncode = told.get("code", -1) if told else -1
            self._host.close()
            os.close(self._ended)
        return self.returncode


def start(command: Command, log: IO[bytes], parent: int, grace_s: float) -> WarmProcess | None:
    """Fork the server of a command from a host.

    Parameters
    ----------
    command : SGLang's, for a CPU.
    log : receives its output.
    parent, grace_s : as `supervise`.

    Returns
    -------
    WarmProcess or None
        None where it has to be started anew.
    """
    caller = os.environ.get(CALLER)
    env = {**os.environ, **command.env}
    cpu = command.env.get("SGLANG_USE_CPU_ENGINE") == "1"
    if not (caller and cpu and list(command.argv[1:3]) == ["-m", MODULE]):
        return None
    try:
        host = _host(int(caller), env, command.env)
        host.settimeout(IMPORT_S)  # the first one is served once SGLang is imported
        asked = {"flags": command.argv[3:], "env": env, "parent": parent, "grace": grace_s}
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [log.fileno()]))]
        host.sendmsg([json.dumps(asked).encode()], rights)
        told = _told(host)
        if told is None:
            raise OSError("the process has ended, or cannot fork")
        host.settimeout(None)
        return WarmProcess(host, told["pid"])
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        log.write(f"kvtop: not forked from a warm process ({e}); started anew\n".encode())
        log.flush()
        return None


def _told(host: socket.socket) -> dict | None:
    """The host's next message; None when it has ended."""
    try:
        data = host.recv(4096)
    except ConnectionError:
        return None
    return json.loads(data) if data else None


def _host(caller: int, env: dict[str, str], own: dict[str, str]) -> socket.socket:
    """A connection to the host of a caller for an environment; started when there is none."""
    folder = Path(tempfile.gettempdir()) / f"kvtop-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if (owner := folder.lstat()).st_uid != os.getuid() or owner.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    read = {
        k: v for k, v in sorted(env.items())
        if k.startswith(_OF_IMPORTS) or (k in own and not k.startswith(READ_LATER))
    }  # fmt: skip
    about = json.dumps([read, sys.executable, os.getcwd()]).encode()
    name = f"{caller}-{hashlib.sha256(about).hexdigest()[:12]}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _tidy(folder)
        path = folder / name
        if (why := path.with_suffix(FAILED)).exists():
            raise OSError(why.read_text(encoding="utf-8", errors="replace"))
        host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            host.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            _begin(path, caller, env)
            host.connect(str(path))
    return host


def _tidy(folder: Path) -> None:
    """Remove what hosts of callers that have ended left behind."""
    for file in folder.glob("*-*"):
        pid = file.name.partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            file.unlink(missing_ok=True)


def _begin(path: Path, caller: int, env: dict[str, str]) -> None:
    """Start a host; whoever connects is served once it has imported."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(16)
        number = listener.fileno()
        command = [sys.executable, "-P", str(HOST), str(number), str(caller)]
        later = {k: v for k, v in env.items() if not k.startswith(READ_LATER)}
        with path.with_suffix(".log").open("wb") as out:
            subprocess.run(
                command, env=later, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True, check=True,
            )  # fmt: skip

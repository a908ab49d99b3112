"""One server lifetime: launch, a real request, what it resolved, and its certain end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Self

import psutil

from kvtop_lib.engine import log, supervise, warm
from kvtop_lib.engine.client import call, flush, free_port
from kvtop_lib.engine.command import HOST, RECORD, SERVED_NAME, Command, server_command
from kvtop_lib.params import Arm, Model
from kvtop_lib.params.base import ServerArgs
from kvtop_lib.plan import LAUNCH_S
from kvtop_lib.terms import KvtopError

_SECRET = ("api_key", "admin_api_key", "password", "secret", "hf_token", "ssl_")
_PROBE = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 4,
    "temperature": 0,
}


class Server:
    """A running server; a context manager that ends every process it started.

    Attributes
    ----------
    url : base address, ``http://127.0.0.1:<port>``.
    command : how it was asked to start.
    log_file : its output.
    startup_s : from launch until a real chat request had passed, seconds; of a `warm` one without
        the imports.
    """

    def __init__(
        self, command: Command, port: int, folder: Path, *, grace_s: float = supervise.GRACE_S
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"http://{HOST}:{port}"
        self.command = command
        self.log_file = folder / "server.log"
        self.startup_s = float("nan")
        self._grace_s = grace_s
        with self.log_file.open("wb") as out:
            self._process = warm.start(command, out, os.getpid(), grace_s) or self._anew(out)

    def _anew(self, out: IO[bytes]) -> subprocess.Popen:
        watch = ["--parent", str(os.getpid()), "--grace", str(self._grace_s), "--"]
        return subprocess.Popen(
            [sys.executable, supervise.__file__, *watch, *self.command.argv],
            env={**os.environ, **self.command.env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the notebook, which ends us in order
        )

    @property
    def warm(self) -> bool:
        """Whether it was forked from a process that had imported SGLang."""
        return isinstance(self._process, warm.WarmProcess)

    @classmethod
    def launch(
        cls,
        model: Model,
        arm: Arm,
        folder: Path | str,
        *,
        timeout_s: float = 600,
        expected_s: float = LAUNCH_S,
    ) -> Self:
        """Start the server of `arm`, say so, and return once a real request has passed.

        Parameters
        ----------
        folder : receives ``server.log``, and ``iterations.jsonl`` when the arm records them.
        timeout_s : longest wait, seconds.
        expected_s : what to tell a waiting user, seconds (`kvtop_lib.pace.start_s`).

        Raises
        ------
        KvtopError
            When the checkpoint is missing, the server ends, or it does not answer in time.
        """
        if not (model.path / "config.json").is_file():
            mend = "run `make model`" if model.builder else "correct `checkpoint` in its file"
            raise KvtopError(f"model {model.id!r} has no checkpoint at {model.path}; {mend}")
        print(f"{arm.id}: starting the server (about {expected_s:.0f} s)", flush=True)
        port = free_port(HOST)
        folder = Path(folder)
        command = server_command(model, arm, port, folder / "iterations.jsonl")
        server = cls(command, port, folder)
        try:
            server.wait_ready(timeout_s)
        except BaseException:
            server.stop()
            raise
        return server

    def wait_ready(self, timeout_s: float, *, poll_s: float = 0.25) -> None:
        """Wait until the engine is warm and one chat request has passed; errors as in `launch`."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if (code := self._process.poll()) is not None:
                raise KvtopError(
                    f"the server ended with code {code} before it was ready: "
                    f"{log.reason(self.log_file)} (log: {self.log_file})"
                )
            try:
                # 503 until the engine's own warm-up is over, whose tokens would count as traffic
                call(f"{self.url}/health", timeout_s=30)
                call(f"{self.url}/v1/chat/completions", _PROBE, timeout_s=60)
            except KvtopError:
                time.sleep(poll_s)
                continue
            self.startup_s = time.monotonic() - started
            return
        raise KvtopError(
            f"the server did not answer a request within {timeout_s:.0f} s: "
            f"{log.reason(self.log_file)} (log: {self.log_file})"
        )

    @property
    def requested_args(self) -> ServerArgs:
        """Flags as asked for; what the server made of them is in `resolved`."""
        return self.command.args

    @property
    def iterations_file(self) -> Path | None:
        """Stream of the scheduler's iterations; None when the arm has none recorded."""
        file = self.command.env.get(RECORD)
        return Path(file) if file else None

    @property
    def pid(self) -> int:
        """Process id of the supervising wrapper."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._process.poll() is None

    def resolved(self) -> dict[str, Any]:
        """Arguments and state as the engine resolved them (``/server_info``), secrets left out."""
        info = call(f"{self.url}/server_info", timeout_s=30)
        return {k: v for k, v in info.items() if not any(word in k for word in _SECRET)}

    def memory_bytes(self) -> int:
        """Proportional set size of all the server's processes, bytes."""
        total = 0
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue  # it ended meanwhile
        return total

    def flush_cache(self, timeout_s: float = 60) -> None:
        """Empty the prefix cache and the n-gram state, waiting until the server is idle.

        Raises
        ------
        KvtopError
            When requests still run after `timeout_s` seconds, or the server has ended.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.alive:
                raise KvtopError(
                    f"the server has ended: {log.reason(self.log_file)} (log: {self.log_file})"
                )
            try:
                flush(self.url, max(0.0, deadline - time.monotonic()))
                return
            except KvtopError as e:
                if time.monotonic() > deadline:
                    raise KvtopError(f"the cache was not flushed in {timeout_s:.0f} s: {e}") from e
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server and every process it started; returns when all are gone."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._grace_s + 10)
        except subprocess.TimeoutExpired:
            for pid in [*supervise.descendants(self.pid), self.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

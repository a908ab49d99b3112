"""What a server's processes, this client and the machine use: memory, load, GPUs.

Nothing is asked of the server: sizes come from the operating system, GPUs from NVML
(``nvidia-ml-py``, which the GPU installation brings).
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import psutil

COLUMNS = (
    "server_rss_bytes",  # sum over the server's processes, shared pages counted once for each
    "server_pss_bytes",  # proportional: shared pages counted once; first and last row only
    "client_rss_bytes",  # sum over the client's processes
    "host_used_bytes",
    "host_available_bytes",
    "load_1min",
    "host_cpu_s",  # seconds since the machine started, summed over its cores
    "host_idle_s",  # those in which a core had nothing to do
    "host_steal_s",  # those that a virtual machine's host gave to others
    "server_cpu_s",  # CPU seconds of the server's processes since each began
    "client_cpu_s",  # of the client's processes; one that has ended counts as last seen
    "gpu_memory_bytes",  # used, all GPUs of the machine
    "gpu_utilisation",  # share of time with a kernel running, mean over the GPUs
    "gpu_power_w",  # all GPUs
)

_IDLE = ("idle", "iowait")
_EVERY = ("user", "nice", "system", "irq", "softirq", "steal", *_IDLE)  # a guest's are in `user`


def is_local(url: str) -> bool:
    """Whether a server's address is one of this machine's."""
    host = urlsplit(url).hostname or ""
    own = {a.address for found in psutil.net_if_addrs().values() for a in found}
    try:
        there = {found[4][0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(a in own or a.startswith("127.") or a == "::1" for a in there)


def server_processes(url: str) -> list[psutil.Process]:
    """The process that listens at an address of this machine, and all it started.

    None are found for a server elsewhere, or one of another user.
    """
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    if not is_local(url):
        return []
    try:
        listening = [
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid
        ]
        first = psutil.Process(min(listening)) if listening else None
        return [first, *first.children(recursive=True)] if first else []
    except (psutil.Error, OSError):
        return []


class Gpus:
    """The machine's NVIDIA GPUs; none when there is no driver or no ``nvidia-ml-py``."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except Exception:  # noqa: BLE001 - a missing library, driver or right: no GPUs to show
            self._handles = []

    def __len__(self) -> int:
        return len(self._handles)

    def sample(self) -> dict[str, float]:
        """``gpu_*`` of `COLUMNS`; what a GPU does not tell is left out."""
        asked = {
            "gpu_memory_bytes": lambda h: self._nvml.nvmlDeviceGetMemoryInfo(h).used,
            "gpu_utilisation": lambda h: self._nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100,
            "gpu_power_w": lambda h: self._nvml.nvmlDeviceGetPowerUsage(h) / 1000,
        }
        found: dict[str, float] = {}
        for name, ask in asked.items() if self._handles else ():
            try:
                each = [float(ask(h)) for h in self._handles]
            except Exception:  # noqa: BLE001 - e.g. no power meter
                continue
            found[name] = sum(each) / (len(each) if name == "gpu_utilisation" else 1)
        return found


class Machine:
    """Samples of one server's machine.

    Parameters
    ----------
    url : server; its processes are looked up once, since looking costs tens of milliseconds.
    clients : the client's processes beside this one; looked at at every sample, more may come.
    """

    def __init__(self, url: str, clients: Sequence[psutil.Process] = ()) -> None:
        self.server, self._clients = server_processes(url), clients
        self._client, self._spent_s = psutil.Process(os.getpid()), {}
        self._gpus = Gpus() if is_local(url) else None
        self._local = is_local(url)

    def sample(self, *, pss: bool = False) -> dict[str, float]:
        """Values by column name; of a server elsewhere only the client's own.

        ``pss`` reads every page-table entry of the server, which stops it for some
        milliseconds: not while it is measured.
        """
        clients = [self._client, *self._clients]
        self._spent_s |= {p.pid: s for p in clients if (s := _cpu(p)) is not None}
        found = {
            "client_rss_bytes": float(sum(_rss(p) or 0 for p in clients)),
            "client_cpu_s": sum(self._spent_s.values()),
        }
        if not self._local:
            return found
        memory = psutil.virtual_memory()
        found["host_used_bytes"] = float(memory.total - memory.available)
        found["host_available_bytes"] = float(memory.available)
        found["load_1min"] = psutil.getloadavg()[0]
        cpu = psutil.cpu_times()
        found["host_cpu_s"] = sum(getattr(cpu, k, 0.0) for k in _EVERY)
        found["host_idle_s"] = sum(getattr(cpu, k, 0.0) for k in _IDLE)
        found["host_steal_s"] = getattr(cpu, "steal", 0.0)
        of_server = {"server_rss_bytes": _rss, "server_cpu_s": _cpu}
        for name, size in (of_server | ({"server_pss_bytes": _pss} if pss else {})).items():
            sizes = [s for p in self.server if (s := size(p)) is not None]
            if sizes:
                found[name] = float(sum(sizes))
        return found | self._gpus.sample()

    def environment(self, name: str) -> str | None:
        """A variable of the server's processes, None when none has it or it may not be read."""
        for process in self.server:
            try:
                if value := process.environ().get(name):
                    return value
            except (psutil.Error, OSError):
                continue
        return None

    def open_file(self, name: str) -> str | None:
        """A file of that name that one of the server's processes has open, None without one.

        A server that was forked has the variables of the process that it was forked from.
        """
        for process in self.server:
            try:
                found = (f.path for f in process.open_files() if os.path.basename(f.path) == name)
                if path := next(found, None):
                    return path
            except (psutil.Error, OSError):
                continue
        return None


def _rss(process: psutil.Process) -> int | None:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return None  # it has ended


def _cpu(process: psutil.Process) -> float | None:
    try:
        used = process.cpu_times()
    except psutil.Error:
        return None  # it has ended
    return used.user + used.system


def _pss(process: psutil.Process) -> int | None:
    try:
        return process.memory_full_info().pss
    except (psutil.Error, AttributeError):
        return None  # it has ended, or the system has no such number

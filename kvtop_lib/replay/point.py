"""Replaying one point: traffic, clocks and counters, recorded as they were.

What is written here is raw: metrics and checks are derived from it by `kvtop_lib.metrics`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kvtop_lib.params.shape import Load, OpenLoad, load_name
from kvtop_lib.replay import loop
from kvtop_lib.replay.dialect import Api
from kvtop_lib.replay.health import no_collection, short_turns
from kvtop_lib.replay.job import Job
from kvtop_lib.replay.origin import server_url
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.pool import SessionSlice
from kvtop_lib.replay.processes import checked
from kvtop_lib.replay.progress import Progress
from kvtop_lib.terms import KvtopError


def run_point(
    url: str,
    model: str,
    sessions: SessionSlice,
    load: Load,
    plan: Plan,
    seed: int,
    out_dir: Path,
    *,
    labels: dict | None = None,
    scrape_s: float = 1.0,
    progress: str = "auto",
    api: Api = "chat",
    processes: int | str = "auto",
) -> Path:
    """Replay one point and write its raw records.

    Flushing the server's caches before is the caller's part (`kvtop_lib.replay.flush`).

    Parameters
    ----------
    url, model
        Server (``http://host:port``) and the model name that requests carry.
    sessions
        Slice of a `SessionPool` that no other point has used.
    load
        Lanes of a closed loop, or an open load (`kvtop_lib.params.OpenLoad`).
    plan, seed
        Phases and pace; the seed decides the lanes' stagger and first turns, and which requests
        are aborted on purpose.
    out_dir
        Folder of the point; made when missing.
    labels
        Keys that identify the point in the records (run, arm, block, workload, attempt, key).
    scrape_s
        Period of reading ``/metrics``, in seconds.
    progress
        ``auto``, ``live``, ``plain`` or ``off``.
    api
        Route: ``chat``, or ``completions`` for a server without chat.
    processes
        Client processes: ``auto``, one and more when its event loop is late (`replay.processes`),
        or the number to begin with, of which each has a lane.

    Returns
    -------
    Path
        ``out_dir``, with ``requests.parquet``, ``chunks.parquet``, ``scrapes.parquet`` and
        ``recording.json`` (clock, window, outcome, counters before and after, client health).

    Raises
    ------
    KvtopError
        When the slice has been played before, the folder cannot take records (`check_folder`),
        another replay writes to it, ``url`` is no address or ``processes`` no such number.
    KeyboardInterrupt
        After an interrupt, once what had been recorded is written with outcome ``aborted``.
    """
    out_dir, processes = Path(out_dir), checked(processes)
    if sessions.load != load:
        raise KvtopError(f"the sessions are those of load {sessions.name}, not {load_name(load)}")
    if sessions.taken:
        raise KvtopError(
            f"{sessions.taken} sessions of load {sessions.name} were played before, so their "
            "prompts may be cached; make a new SessionPool for a new block"
        )
    name, is_open = load_name(load), isinstance(load, OpenLoad)
    lanes, rate = (None, load.rate) if is_open else (load, None)
    labels = {**(labels or {}), "load": name, "c": lanes, "rate": rate, "seed": seed}
    shown = Progress(f"{labels.get('arm', model)} {name}", progress)
    asked = (sessions, load, plan, seed, out_dir, labels, scrape_s, shown, api, processes)
    with _own(out_dir):
        _on_thread(Job(server_url(url), model, *asked))
    return out_dir


def check_folder(folder: Path) -> None:
    """Find out, without making it, whether a folder can take records.

    Raises
    ------
    KvtopError
        When it holds a recording, or it or the folder that it is to be made in is not writable.
    """
    there = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    try:
        if (folder / "recording.json").exists():
            raise KvtopError(
                f"{folder} already holds a recording; a retry is a new attempt, in another folder"
            )
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as e:
        said = f"{e.strerror or e}: {there}"
        raise KvtopError(f"{folder} cannot be written to ({said}); give another folder") from None


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Hold a point's folder, made when missing, so that no other replay writes into it."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
    except BlockingIOError:
        os.close(held)
        raise KvtopError(f"another replay is writing to {folder}; give another folder") from None
    try:
        yield
    finally:
        os.close(held)


def _on_thread(job: Job) -> None:
    """Run a job on a thread of its own: a notebook's kernel already runs a loop on this one."""
    errors: list[BaseException] = []
    done = threading.Event()  # join() forgets a running thread when it is interrupted
    begun = threading.Lock()  # so that a start that an interrupt has hidden can be repeated

    def work() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            loop.run(job.run())
        except BaseException as e:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(e)
        finally:
            done.set()

    with no_collection(), short_turns():
        while not done.is_set():
            try:
                if not begun.locked():
                    threading.Thread(target=work, name="kvtop-replay").start()
                done.wait()
            except KeyboardInterrupt:
                job.interrupt()
    if errors:
        raise errors[0]
    if job.interrupted:
        raise KeyboardInterrupt

"""SGLang's processes forked from the first one: what it has imported, they need not import again.

Spawned, the scheduler and the detokenizer each import all of SGLang anew, which on few cores takes
longer than the rest of a start. On a CPU only: a process that has met CUDA cannot be forked.
"""

import logging
import multiprocessing
import os

import sglang.srt.plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

logger = logging.getLogger(__name__)


def register() -> None:
    """Fork where the first process of a server chooses to spawn."""
    if multiprocessing.parent_process() is None:
        HookRegistry.register("multiprocessing.set_start_method", prefer_fork, HookType.AROUND)


def prefer_fork(original, method, force=False) -> None:
    """Set ``fork`` for ``spawn``, if this process has no other thread.

    Another thread might hold a lock at that moment, which nobody would release in the child.
    """
    threads = len(os.listdir("/proc/self/task"))
    if method == "spawn" and threads == 1:
        os.register_at_fork(after_in_child=plugins_again)
        method = "fork"
    logger.info("processes start by %s; threads here: %d", method, threads)
    original(method, force)


def plugins_again() -> None:
    """Let the child load the plug-ins for its own part, as a spawned one does."""
    sglang.srt.plugins._plugins_loaded = False

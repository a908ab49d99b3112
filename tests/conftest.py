"""Its place makes helpers in this folder (``scripted_server``) importable from every test."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvtop_lib.caller import CALLER

# no test fails because a machine is busy
settings.register_profile("kvtop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvtop")

FIRST = ("engine", "notebooks", "browser")  # the long ones; many short ones then fill both workers
OWN_SERVERS = ("test_drafts.py", "test_whole_path.py")


def together(nodeid: str) -> str:
    """Tests of one answer share a worker of pytest-xdist, and so what their fixtures start.

    These are the tests of a file, all that use the engine's shared servers, and all that use the
    browser. Marks would say it better, but pytest-xdist 3.8 cannot read them under pytest 9.
    """
    *_, folder, file = nodeid.partition("::")[0].split("/")
    return folder if folder in ("engine", "browser") and file not in OWN_SERVERS else file


def pytest_collection_modifyitems(items):
    """The long tests come first."""
    order = {name: i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(Path(item.path).parent.name, len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whole groups of `together`, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return together(nodeid)

    return Groups(config, log)


# servers of all tests are forked from one process that has imported SGLang
os.environ.setdefault(CALLER, str(os.getpid()))

# A runner started in the background may ignore Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

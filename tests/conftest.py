"""Its place makes helpers in this folder (``scripted_server``) importable from every test."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# no test fails because a machine is busy
settings.register_profile("kvtop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvtop")

HERE = Path(__file__).parent
FIRST = ("engine", "notebooks", "browser")  # the long ones; many short ones then fill both workers


def pytest_collection_modifyitems(items):
    """Tests of a file share a worker of pytest-xdist, and so what the file's fixtures start.

    A folder's conftest may have put several files together before (``xdist_group``).
    """
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(Path(item.path).relative_to(HERE))))
    order = {name: i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(Path(item.path).relative_to(HERE).parts[0], len(FIRST)))


# A runner started in the background may ignore Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

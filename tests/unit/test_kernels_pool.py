"""The kernels' thread pool: every worker keeps working, whenever regions begin and end."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtop_lib import paths

HARNESS = Path(__file__).with_name("pool_race.c")
HEADERS = paths.plugin_site_dir().parent / "kernels" / "csrc"


def test_a_worker_that_slept_is_woken_however_regions_and_wake_ups_interleave(tmp_path):
    """A region that ended between two looks of a worker once put it to sleep for good."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        message = "no C compiler: the pool is not built here"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    program = tmp_path / "pool_race"
    subprocess.run(
        [compiler, "-O2", "-pthread", "-I", str(HEADERS), str(HARNESS), "-o", str(program)],
        check=True,
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "2", "no worker took part in a long region"

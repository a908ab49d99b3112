"""One browser and one rendering of every kind of page for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from looking import missing

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402


@pytest.fixture(scope="session")
def ready() -> None:
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def pages(ready, tmp_path_factory) -> dict[str, Path]:
    """A run, both published sources, and two runs compared."""
    from kvtop_lib.note import render_comparison, render_note

    folder = tmp_path_factory.mktemp("notes")
    run, other = (truth.write_run(folder / name) for name in ("synthetic", "second"))
    return {
        "run": render_note(run, folder / "run.html"),
        "glm53": render_note("published:glm53", folder / "glm53.html"),
        "qwen35": render_note("published:qwen35", folder / "qwen35.html"),
        "compared": render_comparison(run, other, folder / "compared.html"),
    }


@pytest.fixture(scope="session")
def browser(ready):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
                 "hide-scrollbars", "disable-background-networking", "no-first-run"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()

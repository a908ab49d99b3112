"""Opening a page in Chromium and asking it questions."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path


def missing() -> str | None:
    """What these tests lack, None when they can run."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "Chromium and its driver are missing (Debian: chromium, chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is missing (pip install .[test])"
    return None


def show(
    browser, page: Path, width: int = 1300, *, dark: bool = False, script: bool = True
) -> None:
    """Open the page and wait until its charts are alive."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
    browser.get(page.as_uri())
    deadline = time.monotonic() + 90
    while script and not js(browser, "document.documentElement.dataset.charts"):
        assert time.monotonic() < deadline, "the charts did not come alive"
        time.sleep(0.2)


def js(browser, expression: str):
    """Value of an expression in the page."""
    return browser.execute_script(f"return {expression}")


def requests(browser) -> list[str]:
    """Addresses that the page asked for."""
    events = [json.loads(x["message"])["message"] for x in browser.get_log("performance")]
    sent = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]

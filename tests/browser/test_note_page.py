"""The note in a real browser: offline, in both themes, on a phone, on paper, by keyboard."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from kvtop_lib.note import render_note

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402

pytestmark = pytest.mark.browser
CHARTS = 7  # core, throughput, ttft, ratio, two of mechanism, plane


def _missing() -> str | None:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "Chromium and its driver are missing (Debian: chromium, chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is missing (pip install .[test])"
    return None


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    if reason := _missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("note")
    return render_note(truth.write_run(folder / "synthetic"), folder / "note.html")


@pytest.fixture(scope="module")
def browser(page):
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
    return browser.execute_script(f"return {expression}")


def requests(browser) -> list[str]:
    """Addresses that the page asked for."""
    events = [json.loads(x["message"])["message"] for x in browser.get_log("performance")]
    sent = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]


def test_no_error_no_request_and_every_chart_alive(browser, page):
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    show(browser, page)
    assert requests(browser) == [page.as_uri()]
    assert [x["message"] for x in browser.get_log("browser")] == []
    assert js(browser, "document.querySelectorAll('.chart.ready .live svg.marks').length") == CHARTS
    assert js(browser, "document.querySelectorAll('.static:not(.replaced)').length") == 0


def test_marks_are_the_points_that_were_measured(browser, page):
    show(browser, page)

    def marks(figure: str, role: str) -> int:
        query = f"#fig-{figure} .live .mark-{role}.role-mark path"
        return js(browser, f"document.querySelectorAll({json.dumps(query)}).length")

    n = len(truth.LOADS)
    assert marks("throughput", "line") == 4 and marks("throughput", "symbol") == 4 * n
    assert marks("ratio", "line") == 3 and marks("ratio", "symbol") == 3 * n
    assert marks("mechanism", "symbol") == (3 + 4) * n
    assert marks("core", "rect") == 4


def test_the_tooltip_shows_the_value_of_the_records(browser, page):
    from selenium.webdriver.common.action_chains import ActionChains

    show(browser, page)
    query = "#fig-throughput .live .mark-symbol.role-mark path"
    spots = browser.find_elements("css selector", query)
    labels = [s.get_attribute("aria-label") for s in spots]
    k = next(i for i, x in enumerate(labels) if "arm: Baseline" in x and "c: 8;" in x)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", spots[k])
    ActionChains(browser).move_to_element(spots[k]).perform()
    time.sleep(0.5)
    tip = js(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText || ''")
    mean = (truth.output_tok_s("baseline", 1, 8) + truth.output_tok_s("baseline", 2, 8)) / 2
    assert "Baseline" in tip and f"{mean:.0f}" in tip, tip  # 161.6, three digits


def test_a_hostile_record_is_text(browser, page):
    show(browser, page)
    assert js(browser, "document.querySelectorAll('img').length") == 0
    text = js(browser, "document.querySelector('.caveats').innerText")
    assert truth.HOSTILE in text


@pytest.mark.parametrize("width", [360, 768, 1300, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(browser, page, width, dark):
    show(browser, page, width, dark=dark)
    assert js(browser, "document.documentElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll('.live svg.marks, table, h1, .tile')].filter(e =>
        e.offsetParent !== null && e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))"""
    assert js(browser, wide) == []


def luminance(colour: str) -> float:
    parts = [int(float(x)) / 255 for x in colour.split("(")[1].rstrip(")").split(",")[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_page_in_both_themes(browser, page, dark):
    show(browser, page, dark=dark)
    paper = luminance(js(browser, "getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.05) == dark
    for query in ("p", ".margin", ".tile .big", ".tile.loss .big", ".caveats li", "figcaption",
                  "details.data summary", ".byline"):  # fmt: skip
        ink = luminance(js(browser, f"getComputedStyle(document.querySelector('{query}')).color"))
        high, low = max(ink, paper), min(ink, paper)
        assert (high + 0.05) / (low + 0.05) >= 4.5, query
    axis = "getComputedStyle(document.querySelector('#fig-throughput .live text')).fill"
    ink = luminance(js(browser, axis))
    assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5


def test_without_scripts_the_charts_are_pictures(browser, page):
    show(browser, page, script=False)
    source = browser.page_source
    assert source.count("<svg") >= CHARTS
    shot = base64.b64decode(browser.get_screenshot_as_base64())
    assert shot.startswith(b"\x89PNG")
    show(browser, page)  # scripts are on again for the next test


def test_keyboard_reaches_the_tables_and_headings_are_in_order(browser, page):
    show(browser, page)
    levels = js(browser, "[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
    assert js(browser, "document.querySelectorAll('summary').length") >= CHARTS - 1
    unnamed = "[...document.querySelectorAll('[role=img]')].filter(e => !e.ariaLabel).length"
    assert js(browser, unnamed) == 0
    assert js(browser, "document.documentElement.lang") == "en"


def test_it_prints(browser, page):
    show(browser, page)
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    data = base64.b64decode(pdf)
    assert data.startswith(b"%PDF") and 50_000 < len(data) < 5_000_000
    pages = data.count(b"/Type /Page\n") + data.count(b"/Type /Page/") + data.count(b"/Type /Page ")
    assert 3 <= pages <= 14

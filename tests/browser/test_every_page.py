"""What holds for every page: offline, in both themes, on a phone, on paper, by keyboard."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
from pathlib import Path

import pytest
from looking import js, requests, show

pytestmark = pytest.mark.browser
CHARTS = {"run": 10, "glm53": 3, "qwen35": 5, "compared": 2}
LIMIT_BYTES = 2_000_000


@pytest.fixture(params=CHARTS)
def name(request) -> str:
    return request.param


@pytest.fixture
def page(pages, name) -> Path:
    return pages[name]


def test_no_error_no_request_and_every_chart_alive(browser, page, name):
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    show(browser, page)
    assert requests(browser) == [page.as_uri()]
    assert [x["message"] for x in browser.get_log("browser")] == []
    alive = "document.querySelectorAll('.chart.ready .live svg.marks').length"
    assert js(browser, alive) == CHARTS[name]
    assert js(browser, "document.querySelectorAll('.static:not(.replaced)').length") == 0
    assert page.stat().st_size <= LIMIT_BYTES


@pytest.mark.parametrize("width", [360, 768, 1300, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(browser, page, width, dark):
    show(browser, page, width, dark=dark)
    assert js(browser, "document.documentElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll('.live svg.marks, table, h1, .tile')].filter(e =>
        e.offsetParent !== null && e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))"""
    assert js(browser, wide) == []


def colours(png: bytes) -> dict[tuple[int, int, int], int]:
    """Pixels of a picture by colour."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    return {colour: n for n, colour in image.getcolors(image.width * image.height)}


def test_without_scripts_pictures_stand_in_for_the_charts(browser, page, name):
    show(browser, page, script=False)
    try:
        stills = browser.find_elements("css selector", ".static svg")
        assert len(stills) == CHARTS[name]
        for still in stills:
            assert still.is_displayed() and still.size["width"] > 250 < 2 * still.size["height"]
            assert still.get_attribute("aria-label")
        for live in browser.find_elements("css selector", ".live"):
            assert not live.is_displayed() and live.get_attribute("innerHTML") == ""
        assert "Without JavaScript" in browser.find_element("css selector", ".noscript").text
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", stills[1])
        seen = colours(stills[1].screenshot_as_png)
        paper = max(seen, key=seen.get)
        vivid = sum(n for c, n in seen.items() if max(c) - min(c) > 60)
        inked = sum(n for c, n in seen.items() if abs(sum(c) - sum(paper)) > 300)
        assert len(seen) > 10 and vivid > 100 and inked > 300, "the picture is blank"
    finally:
        show(browser, page)  # scripts are on again for the next test
    assert js(browser, "[...document.querySelectorAll('.static')].every(e => !e.offsetParent)")


WHERE = """(() => { const e = document.activeElement; const r = e.getBoundingClientRect();
    return { tag: e.tagName, figure: e.closest('figure')?.id || '', cls: e.className,
        inside: e.parentElement?.className || '', text: e.ariaLabel || e.innerText || '',
        ring: getComputedStyle(e).outlineStyle, wide: r.width, top: r.top, tall: innerHeight,
        seen: e.dataset.stop === '1' || !(e.dataset.stop = '1') }; })()"""


def stops(browser, most: int = 120) -> list[dict]:
    """Elements that Tab reaches from the top of the page, in turn."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    found = []
    js(browser, "document.querySelectorAll('[data-stop]').forEach(e => delete e.dataset.stop)")
    for _ in range(most):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        here = js(browser, WHERE)
        if here["tag"] in ("BODY", "HTML") or here["seen"]:
            break
        found.append(here)
    return found


def test_the_keyboard_reaches_and_opens_everything(browser, page, name):
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    found = stops(browser)
    assert len(found) < 120, "Tab never came back"
    data = [x for x in found if x["tag"] == "SUMMARY" and "data" in x["inside"].split()]
    figures = js(browser, "[...document.querySelectorAll('figure')].map(e => e.id)")
    assert [x["figure"] for x in data] == figures, "the data of a figure is out of reach"
    saves = [x for x in found if x["text"] == "Save this chart"]
    assert len(saves) == CHARTS[name]
    assert any("code" in x["inside"].split() for x in found)
    for x in found:
        assert x["ring"] not in ("none", ""), x
        assert x["text"].strip() and x["wide"] > 0 and 0 <= x["top"] < x["tall"], x
    details = browser.find_element("css selector", f"#{figures[0]} details.data")
    assert not details.get_property("open")
    details.find_element("css selector", "summary").send_keys(Keys.ENTER)
    assert details.get_property("open")
    inner = stops(browser, 2)
    assert inner[0]["cls"] == "scroll" and inner[1]["text"] == "Download as CSV"
    menu = browser.find_element("css selector", f"#{figures[0]} .vega-embed details summary")
    menu.send_keys(Keys.ENTER)
    assert [x["text"] for x in stops(browser, 2)] == ["Save as SVG", "Save as PNG"]


def test_headings_are_in_order_and_pictures_have_names(browser, page):
    show(browser, page)
    levels = js(browser, "[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1 and levels.count(2) >= 3
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
    unnamed = "[...document.querySelectorAll('[role=img]')].filter(e => !e.ariaLabel).length"
    assert js(browser, unnamed) == 0
    names = js(browser, "[...document.querySelectorAll('.live')].map(e => e.ariaLabel)")
    assert all(len(x) > 20 for x in names) and len(set(names)) == len(names)
    assert js(browser, "document.documentElement.lang") == "en"
    assert js(browser, "document.title").startswith("KVTop · ")


def test_it_prints(browser, page, name):
    show(browser, page)
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    data = base64.b64decode(pdf)
    assert data.startswith(b"%PDF") and 30_000 < len(data) < 5_000_000
    pages = data.count(b"/Type /Page\n") + data.count(b"/Type /Page/") + data.count(b"/Type /Page ")
    assert 2 <= pages <= 14  # a figure a page, most of the longest
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = "[...document.querySelectorAll('.static')].filter(e => e.offsetParent).length"
        assert js(browser, shown) == CHARTS[name], "paper shows the pictures"
        assert js(browser, "[...document.querySelectorAll('.live')].every(e => !e.offsetParent)")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# -- axe-core: https://github.com/dequelabs/axe-core, from the package that carries its script --
@pytest.fixture(scope="module")
def axe() -> str:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        reason = "axe-core is missing (pip install --no-deps axe-playwright-python)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


def judged(browser, axe: str) -> dict:
    """Findings of axe-core on the open page."""
    browser.execute_script(axe)
    return browser.execute_async_script(
        """const done = arguments[arguments.length - 1];
        axe.run(document, {resultTypes: ['violations']}).then(r => done({
            passed: r.passes.length,
            found: r.violations.map(v => ({id: v.id, impact: v.impact,
                nodes: v.nodes.map(n => n.html.slice(0, 120) + ' ' + n.failureSummary)}))
        }))"""
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1300])
def test_axe_finds_nothing_serious(browser, page, axe, dark, width):
    show(browser, page, width, dark=dark)
    browser.execute_script("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    result = judged(browser, axe)
    assert result["passed"] > 15, "axe has looked at nothing"
    serious = [x for x in result["found"] if x["impact"] in ("serious", "critical")]
    assert not serious, json.dumps(serious, indent=1)


def test_axe_would_find_something(browser, page, axe):
    """The test of the test above."""
    show(browser, page)
    browser.execute_script(
        "document.querySelector('main').insertAdjacentHTML('afterbegin',"
        '\'<p style="color:#ccc;background:#fff">pale</p><img src="data:,">\')'
    )
    assert {"color-contrast", "image-alt"} <= {x["id"] for x in judged(browser, axe)["found"]}

"""The note of a run in a real browser: marks, tooltips, colours, and hostile records."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from looking import js, show

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import synthetic_run as truth  # noqa: E402

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(pages):
    return pages["run"]


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


def labels_of_the_plane(browser) -> list[dict]:
    return js(
        browser,
        """[...document.querySelectorAll(
        '#fig-plane .live .mark-text.role-mark text')].filter(e => e.textContent).map(e => {
            const r = e.getBoundingClientRect();
            return {text: e.textContent, left: r.left, right: r.right, top: r.top,
                    bottom: r.bottom}; })""",
    )


@pytest.mark.parametrize("width", [360, 1300])
def test_labels_of_the_plane_do_not_touch(browser, page, width):
    show(browser, page, width)
    found = labels_of_the_plane(browser)
    assert {"c = 1", "c = 32"} <= {x["text"] for x in found}
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            apart = (a["right"] <= b["left"] + 1 or b["right"] <= a["left"] + 1
                     or a["bottom"] <= b["top"] + 3 or b["bottom"] <= a["top"] + 3)  # fmt: skip
            assert apart, (a, b)

"""The notes of published evidence in a real browser: marks and tooltips are the printed numbers."""

from __future__ import annotations

import json
import time

import pytest
from looking import js, show

pytestmark = pytest.mark.browser


def marks(browser, figure: str, kind: str, tag: str = "path") -> int:
    query = f"#fig-{figure} .live .mark-{kind}.role-mark {tag}"
    return js(browser, f"document.querySelectorAll({json.dumps(query)}).length")


def tip(browser, figure: str, *wanted: str, down: int = 0) -> str:
    """Tooltip of the first symbol whose description holds all that is wanted.

    ``down``: pixels below its centre, where another symbol lies over that.
    """
    from selenium.webdriver.common.action_chains import ActionChains

    query = f"#fig-{figure} .live .mark-symbol.role-mark path"
    spots = browser.find_elements("css selector", query)
    spot = next(s for s in spots if all(w in s.get_attribute("aria-label") for w in wanted))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", spot)
    ActionChains(browser).move_to_element_with_offset(spot, 0, down).perform()
    time.sleep(0.5)
    return js(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText || ''")


def test_marks_of_the_first_source(browser, pages):
    show(browser, pages["glm53"])
    assert marks(browser, "core", "rect") == 4
    assert marks(browser, "throughput", "line") == 3
    assert marks(browser, "throughput", "symbol") == 18
    assert marks(browser, "ratio", "line") == 2 and marks(browser, "ratio", "symbol") == 12
    assert js(browser, "document.querySelectorAll('#fig-ttft').length") == 0


def test_tooltips_of_the_first_source(browser, pages):
    show(browser, pages["glm53"])
    text = tip(browser, "throughput", "arm: Baseline", "c: 1;", down=3)
    assert "63" in text and "ratio" not in text
    text = tip(browser, "throughput", "arm: MTP + n-gram", "c: 32;")  # the uppermost marker there
    assert "961" in text and "the printed ratio" in text  # 971 x 0.99 = 961.29, three digits
    assert "1.58" in tip(browser, "ratio", "arm: MTP + n-gram", "c: 1;")


def test_marks_of_the_second_source(browser, pages):
    show(browser, pages["qwen35"])
    for figure in ("throughput", "per_request", "views"):
        assert marks(browser, figure, "line") == 2, figure
        assert marks(browser, figure, "symbol") == 12, figure
    assert marks(browser, "active", "line") == 3 and marks(browser, "active", "symbol") == 12
    assert marks(browser, "active", "rule", "line") == 13  # 12 ranges of digits, one cap


def test_tooltips_of_the_second_source(browser, pages):
    show(browser, pages["qwen35"])
    assert "24.1" in tip(browser, "active", "arm: MTP", "c: 32;")  # 1502 / 62.3
    assert "68.3" in tip(browser, "active", "arm: Baseline", "c: 128")  # 2800 / 41
    assert "1.573" in tip(browser, "views", "arm: Speed of one request", "c: 128")  # 64.5 / 41

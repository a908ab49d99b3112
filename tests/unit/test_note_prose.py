"""No number can be typed into prose, and nothing out of a record can become markup."""

import pytest
from markupsafe import Markup

from kvtop_lib.note.parts import definition, script_json, table
from kvtop_lib.note.prose import NBSP, Value, listing, percent, quantity, say


def test_typed_numbers_are_refused():
    with pytest.raises(TypeError, match="typed number"):
        say("It is 30 percent faster.")
    for number in (30, 0.3, "30 %"):
        with pytest.raises(TypeError, match="must be a Value"):
            say("It is {n} faster.", n=number)
    with pytest.raises(TypeError, match="must be a Value"):
        listing([1, 2])


def test_a_value_names_its_source():
    value = Value("+30 %", "results.jsonl#L3/L1:ratio(output_tok_s)", 1.3)
    assert say("Up {v}.", v=value) == (
        'Up <span class="v" data-source="results.jsonl#L3/L1:ratio(output_tok_s)" '
        'data-value="1.3">+30 %</span>.'
    )


def test_records_are_text_never_markup():
    hostile = '<script>alert(1)</script>"&'
    html = say("{a} {b}", a=Value(hostile, hostile), b="<i>")
    assert "<script" not in html and "<i>" not in html
    assert html.count("&lt;script&gt;") == 2
    assert "<script" not in definition([("x", hostile)], "full")
    json = script_json({"x": "</script><!--<script>"})
    assert "<" not in json and isinstance(json, Markup)


def test_tables_escape_every_cell_and_heading():
    import pandas as pd

    html = table(pd.DataFrame({"<b>": ["<img src=x>", None], "n": [1.5, float("nan")]}))
    assert "<img" not in html and "<b>" not in html
    assert "&lt;img src=x&gt;" in html and html.count("–") == 2


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (121.5 / 108, "+12 %"),  # exactly 12.5: rounded half to even, as it was published
        (1.3, "+30 %"), (0.9, "−10 %"), (1.019, "+1.9 %"), (0.98, "−2.0 %"), (1.0, "0 %"),
        (1.00001, "0 %"), (0.9999, "0 %"), (1.0999, "+10 %"), (2.5, "+150 %"),
    ],
)  # fmt: skip
def test_percent(ratio, text):
    assert percent(ratio) == text.replace(" ", NBSP)


@pytest.mark.parametrize(
    ("value", "text"),
    [(40.4, "40.4"), (1234.5, "1,234"), (0.1, "0.100"), (2.0, "2.00"), (0, "0"), (250, "250"),
     (float("inf"), "∞"), (99.96, "100.0")],
)  # fmt: skip
def test_quantity_has_three_digits(value, text):
    assert quantity(value, "s") == text + NBSP + "s"


def test_listing():
    assert listing(["a", "<b>", "c"]) == "a, &lt;b&gt; and c"
    assert listing(["a"]) == "a" and listing([]) == ""

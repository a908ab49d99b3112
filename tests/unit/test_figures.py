"""Charts: what stands in the spec is what stands in the frame, told apart in three ways."""

import json

import altair as alt
import pandas as pd
import pytest

from kvtop_lib import figures

TITLES = ["Baseline", "MTP", "N-gram"]


def frame(**changes) -> pd.DataFrame:
    rows = [
        {"title": t, "c": c, "mean": 10.0 * c + i, "values": [10.0 * c + i], "n": 1,
         "status": "ok", "reason": "", "lines": [1], "low": None, "high": None}
        for i, t in enumerate(TITLES) for c in (1, 4, 32)
    ]  # fmt: skip
    data = pd.DataFrame(rows)
    for column, (row, value) in changes.items():
        data.at[row, column] = value
    return data


def data_of(spec: dict, mark: str) -> list[list[dict]]:
    """Rows behind every layer with a mark."""

    def kind(layer):
        return layer["mark"]["type"] if isinstance(layer["mark"], dict) else layer["mark"]

    shared = spec.get("data")
    sets = [x.get("data", shared) for x in spec["layer"] if kind(x) == mark]
    return [spec["datasets"][d["name"]] for d in sets]


def test_throughput_draws_every_mean_once_on_a_log2_axis():
    spec = figures.to_spec(figures.throughput(frame()))
    (rows,) = data_of(spec, "line")
    assert {(r["title"], r["c"], r["mean"]) for r in rows} == {
        (t, c, 10.0 * c + i) for i, t in enumerate(TITLES) for c in (1, 4, 32)
    }
    x = spec["layer"][0]["encoding"]["x"]
    assert (x["scale"]["type"], x["scale"]["base"], x["axis"]["values"]) == ("log", 2, [1, 4, 32])
    assert data_of(spec, "tick") == []  # one block: nothing to show beside the mean


def test_arms_differ_in_colour_dash_and_marker():
    looks = figures.styles([f"a{i}" for i in range(7)])
    for part in ("colour", "dash", "shape"):
        assert len({getattr(s, part) for s in looks}) == 7
    many = figures.styles([f"a{i}" for i in range(13)])  # a colour may return, a look may not
    for parts in (("dash", "shape"), ("colour", "shape"), ("colour", "dash")):
        assert len({tuple(getattr(s, p) for p in parts) for s in many}) == 13
    assert looks[0].colour == "currentColor"  # the baseline follows the page's theme
    spec = figures.to_spec(figures.throughput(frame()))
    text = json.dumps(spec)
    assert all(f'"{channel}"' in text for channel in ("strokeDash", "shape", "color"))


def test_the_ratio_leaves_out_the_baseline_and_keeps_the_looks():
    data = frame()
    data = data[data["title"] != "Baseline"].assign(mean=[1.2, 1.0, 0.8] * 2, values=[[1.0]] * 6)
    spec = figures.to_spec(figures.ratio_to_baseline(data, TITLES))
    lines = [x for x in spec["layer"] if x["mark"]["type"] == "line"]
    scale = lines[0]["encoding"]["color"]["scale"]
    assert scale["domain"] == ["MTP", "N-gram"]
    assert scale["range"] == [s.colour for s in figures.styles(TITLES)[1:]]
    assert any(x["mark"]["type"] == "rule" for x in spec["layer"])  # the line of equal throughput


def test_intervals_take_the_place_of_block_ticks():
    data = frame(low=(3, 9.0), high=(3, 12.0))
    data = data[data["title"] != "Baseline"]
    data["low"], data["high"] = data["mean"] / 100 * 0.9, data["mean"] / 100 * 1.1
    data["mean"], data["n"] = data["mean"] / 100, 2
    data["values"] = [[m, m] for m in data["mean"]]
    spec = figures.to_spec(figures.ratio_to_baseline(data, TITLES))
    assert data_of(spec, "tick") == []
    rules = [r for rows in data_of(spec, "rule") for r in rows if "high" in r]
    assert len(rules) == 6
    spec = figures.to_spec(figures.throughput(data))  # without intervals: a tick per block
    assert [len(rows) for rows in data_of(spec, "tick")] == [12]


def test_a_point_without_a_number_is_a_cross_and_a_gap_in_the_line():
    data = frame()
    data["mean"] = data["mean"].astype(object)
    for column, value in {"mean": None, "values": [], "n": 0, "status": "failed",
                          "reason": "server ended"}.items():  # fmt: skip
        data.at[1, column] = value
    spec = figures.to_spec(figures.throughput(data))
    (crosses,) = data_of(spec, "text")
    assert [(r["title"], r["c"], r["reason"]) for r in crosses] == [("Baseline", 4, "server ended")]
    (rows,) = data_of(spec, "line")
    assert [r["mean"] for r in rows if r["c"] == 4 and r["title"] == "Baseline"] == [None]


def test_a_line_does_not_leap_over_a_load_that_others_have():
    data = frame()
    data = data[~((data["title"] == "MTP") & (data["c"] == 4))]
    spec = figures.to_spec(figures.throughput(data))
    line = next(x for x in spec["layer"] if x["mark"]["type"] == "line")
    detail = line["encoding"]["detail"]["field"]
    (rows,) = data_of(spec, "line")
    parts = {t: [r[detail] for r in rows if r["title"] == t] for t in TITLES}
    assert len(set(parts["Baseline"])) == len(set(parts["N-gram"])) == 1
    assert len(set(parts["MTP"])) == 2


def test_acceptance_has_no_baseline_and_starts_at_one():
    data = frame()
    data.loc[data["title"] == "Baseline", "mean"] = None
    spec = figures.to_spec(figures.acceptance(data))
    (rows,) = data_of(spec, "line")
    assert {r["title"] for r in rows} == {"MTP", "N-gram"}
    assert data_of(spec, "text") == []  # not drafting is no failure


def test_pair_scales_bars_within_a_load():
    data = pd.DataFrame({"c": [1, 1, 32, 32], "drafting": ["off", "on"] * 2,
                         "tok_s": [40.0, 50.0, 250.0, 200.0]})  # fmt: skip
    spec = figures.to_spec(figures.pair(data))
    (rows,) = data_of(spec, "bar")
    assert [(r["share"], r["text"]) for r in rows] == [
        (0.8, "40 tok/s"), (1.0, "50 tok/s"), (1.0, "250 tok/s"), (0.8, "200 tok/s"),
    ]  # fmt: skip


def test_by_position_pools_loads_by_their_steps():
    data = pd.DataFrame({"title": "MTP", "c": [1, 32], "position": 1, "accepted": [0.5, 0.8],
                         "steps": [100, 300]})  # fmt: skip
    spec = figures.to_spec(figures.by_position(data, TITLES))
    (rows,) = data_of(spec, "line")
    assert rows[0]["accepted"] == pytest.approx((50 + 240) / 400)
    assert len(data_of(spec, "tick")[0]) == 2


def test_svg_is_labelled_scales_and_escapes():
    hostile = 'arm <script>alert("x")</script>'
    data = frame()
    data["title"] = data["title"].replace("MTP", hostile)
    svg = figures.to_svg(figures.throughput(data), label='a "label" <b>')
    assert svg.startswith("<svg") and "<script>" not in svg
    assert 'aria-label="a &quot;label&quot; &lt;b>"' in svg and "viewBox" in svg
    assert "currentColor" in svg  # the page's ink


def test_long_names_in_a_legend_are_whole():
    long = ["Baseline", "MTP, width 4", "MTP and n-gram, widths 1, 2 and 4, rule"]
    data = frame()
    data["title"] = data["title"].replace(dict(zip(TITLES, long, strict=True)))
    svg = figures.to_svg(figures.throughput(data))
    assert all(f">{name}</text>" in svg for name in long)  # Vega ends a cut name with an ellipsis


def test_png_is_a_png():
    chart = figures.pair(pd.DataFrame({"c": [1], "drafting": ["off"], "tok_s": [1.0]}))
    assert isinstance(chart, alt.LayerChart)
    assert figures.to_png(chart, width=200, scale=1).startswith(b"\x89PNG")

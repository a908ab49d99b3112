"""Checks of a point: each one passes what is right and names what is wrong."""

from __future__ import annotations

import pandas as pd
import pytest

from kvtop_lib.metrics import audits


def _requests(*rows, columns=("status", "output_tokens", "end_s")) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))


def _counters(before, after) -> dict:
    name = "generation_tokens_total"
    return {"before": {name: before}, "after": {name: after}}


OK2 = _requests(("ok", 10, 1.0), ("ok", 5, 2.0))
CUT = _requests(("ok", 10, 1.0), ("cancelled", 3, 2.0))


@pytest.mark.parametrize(
    ("requests", "before", "after", "ok"),
    [
        (OK2, 100, 115, True),
        (OK2, 100, 114, False),
        (OK2, 100, 116, False),
        (OK2, None, 15, True),  # the counter appears with its first value
        (CUT, 0, 10, True),  # the cancelled one is not booked yet
        (CUT, 0, 13, True),
        (CUT, 0, 10 + 64, True),  # it went on to its limit
        (CUT, 0, 10 + 65, False),
        (CUT, 0, 9, False),
    ],
)
def test_tokens_are_conserved(requests, before, after, ok):
    found = audits.tokens(requests, _counters(before, after), max_output_tokens=64)
    assert found["ok"] is ok
    assert ok or "the server counted" in found["reason"]


def test_without_a_counter_conservation_is_not_claimed():
    found = audits.tokens(OK2, {"before": {}, "after": {}}, 64)
    assert found["ok"] is None and "--enable-metrics" in found["reason"]


def test_a_server_that_died_or_restarted_during_the_point_is_found_out():
    gone = audits.tokens(CUT, {**_counters(5, 0), "after": {}}, 64)
    assert gone["ok"] is False and "the server died" in gone["reason"]
    assert audits.tokens(CUT, _counters(5000, 10), 64)["ok"] is False


@pytest.mark.parametrize(
    ("server_s", "ok"),
    # two good requests of 20 s each and one that the client gave up after 10 s, which the server
    # may have kept for as long as a good one, over 10 s: 4 to 6 in flight
    [(40, True), (60, True), (35, True), (34, False), (65, True), (66, False)],
)
def test_little(server_s, ok):
    columns = ("status", "sent_s", "end_s")
    rows = [("ok", 0.0, 20.0), ("ok", 5.0, 25.0), ("cancelled", 10.0, 20.0)]
    counters = {
        "before": {"request_seconds_total": 7.0},
        "after": {"request_seconds_total": 7.0 + server_s},
    }
    found = audits.little(_requests(*rows, columns=columns), counters, span_s=10.0)
    assert found["ok"] is ok and found["value"] == pytest.approx(server_s / 10)
    none = audits.little(_requests(*rows, columns=columns), {"before": {}, "after": {}}, 10.0)
    assert none["ok"] is None


def test_little_allows_a_share_at_high_load():
    rows = _requests(*[("ok", 0.0, 100.0)] * 32, columns=("status", "sent_s", "end_s"))
    for server_s, ok in ((3041, True), (3039, False)):
        counters = {"before": {}, "after": {"request_seconds_total": server_s}}
        assert audits.little(rows, counters, 100.0)["ok"] is ok


TURNS = ("status", "session", "lane", "turn", "prompt_tokens", "output_tokens", "cached_tokens")


@pytest.mark.parametrize(
    ("cached", "ok"),
    [(100, True), (98, True), (97, False), (120, True), (122, True), (123, False), (0, False)],
)
def test_prefix_hits_lie_between_prompt_and_prompt_plus_output(cached, ok):
    rows = [("ok", "s", 0, 0, 100, 20, 0), ("ok", "s", 0, 1, 160, 5, cached)]
    assert audits.prefix_hits(_requests(*rows, columns=TURNS), page_tokens=1)["ok"] is ok


def test_prefix_hits_skip_turns_whose_prior_turn_failed_and_say_when_nothing_was_checked():
    rows = [("timeout", "s", 0, 0, 100, 20, 0), ("ok", "s", 0, 1, 160, 5, 0)]
    assert audits.prefix_hits(_requests(*rows, columns=TURNS))["ok"] is None
    rows = [("ok", "s", 0, 0, 100, 20, None), ("ok", "s", 0, 1, 160, 5, None)]
    assert "--enable-cache-report" in audits.prefix_hits(_requests(*rows, columns=TURNS))["reason"]


def test_the_first_request_of_a_lane_that_enters_at_a_random_turn_is_cold():
    # the lane enters session s at turn 2: nothing cached, rightly; then turn 3 hits turn 2
    entered = [("ok", "s", 0, 2, 300, 20, 0), ("ok", "s", 0, 3, 350, 5, 310)]
    assert audits.prefix_hits(_requests(*entered, columns=TURNS))["ok"] is True
    # another lane's turn 1 of a session of that name is no prior turn
    alone = [("ok", "s", 1, 1, 200, 20, 0), *entered]
    assert audits.prefix_hits(_requests(*alone, columns=TURNS))["ok"] is True
    cold = [entered[0], ("ok", "s", 0, 3, 350, 5, 0)]
    assert audits.prefix_hits(_requests(*cold, columns=TURNS))["ok"] is False


@pytest.mark.parametrize(
    ("cached", "ok"), [(64, True), (62, True), (61, False), (150, True), (160, True), (163, False)]
)
def test_prompts_of_token_blocks_hit_from_their_shared_blocks_on(cached, ok):
    columns = (*TURNS, "shared_tokens")
    rows = [("ok", "s", 0, 0, 100, 20, 0, 0), ("ok", "s", 0, 1, 160, 5, cached, 64)]
    assert audits.prefix_hits(_requests(*rows, columns=columns))["ok"] is ok
    # text beside it keeps the bounds of text
    text = [("ok", "t", 0, 0, 100, 20, 0, None), ("ok", "t", 0, 1, 160, 5, 64, None)]
    found = audits.prefix_hits(_requests(*rows, *text, columns=columns))
    assert found["ok"] is False and found["value"] == (0.5 if ok else 1.0)


@pytest.mark.parametrize(
    ("first", "second", "ok"),
    [
        ((0, 40), (112, 50), True),  # 64 of the session's own blocks, 110 of another one's
        ((0, 40), (113, 50), False),  # a token that nothing sent before has
        ((0, 40), (61, 50), False),
        ((62, 40), (64, 50), True),  # the first turn too: 60 of its 100 tokens were there before
        ((63, 40), (64, 50), False),
    ],
)
def test_prompts_of_token_blocks_hit_no_more_than_was_sent_before(first, second, ok):
    columns = (*TURNS, "shared_tokens", "unshared_tokens")
    rows = [
        ("ok", "s", 0, 0, 100, 20, first[0], 0, first[1]),
        ("ok", "s", 0, 1, 160, 5, second[0], 64, second[1]),
    ]
    assert audits.prefix_hits(_requests(*rows, columns=columns))["ok"] is ok


def test_a_prompt_that_drops_the_prior_one_need_not_hit_it():
    columns = (*TURNS, "shared_tokens", "unshared_tokens")
    rows = [("ok", "s", 0, 0, 100, 20, 0, None, None), ("ok", "s", 0, 1, 90, 5, 0, 0, None)]
    assert audits.prefix_hits(_requests(*rows, columns=columns))["ok"] is True
    held = [rows[0], ("ok", "s", 0, 1, 90, 5, 0, None, None)]
    assert audits.prefix_hits(_requests(*held, columns=columns))["ok"] is False


def test_a_wider_page_widens_the_bounds():
    rows = [("ok", "s", 0, 0, 100, 20, 0), ("ok", "s", 0, 1, 160, 5, 64)]
    assert audits.prefix_hits(_requests(*rows, columns=TURNS), page_tokens=64)["ok"] is True


def test_enough_requests():
    rows = [("ok", 1, 10.0 + i) for i in range(8)] + [("timeout", 1, 12.0), ("ok", 1, 30.0)]
    assert audits.enough_requests(_requests(*rows), 8, 10.0, 20.0)["ok"] is True
    found = audits.enough_requests(_requests(*rows), 9, 10.0, 20.0)
    assert found["ok"] is False and "8 of 9 needed" in found["reason"]
    assert audits.enough_requests(_requests(*rows[:4]), 1, 10.0, 20.0)["ok"] is False


def test_an_open_load_has_no_lanes_to_wait_for():
    rows = [("ok", 1, 10.0 + i) for i in range(5)]
    assert audits.enough_requests(_requests(*rows), None, 10.0, 20.0)["ok"] is True
    found = audits.enough_requests(_requests(*rows[:4]), None, 10.0, 20.0)
    assert found["ok"] is False and found["expected"] == audits.MIN_REQUESTS


def _rates(*per_bin: int) -> pd.DataFrame:
    times = [t + 0.5 for t in range(len(per_bin))]
    return pd.DataFrame({"recv_s": times, "gain": per_bin})


@pytest.mark.parametrize(
    ("rates", "ok"),
    [
        ([100] * 10, True),
        ([100] * 5 + [125] * 5, True),  # a quarter of 100, less of the mean
        ([100] * 5 + [150] * 5, False),  # a step
        ([100, 101, 99, 100, 100, 70, 71, 69, 70, 70], False),
        ([20, 180, 20, 180, 20, 180, 20, 180, 180, 180], True),  # large, but so is the noise
    ],
)
def test_steady(rates, ok):
    assert audits.steady(_rates(*rates), 0.0, 10.0)["ok"] is ok


def test_a_load_that_changes_by_itself_is_not_held_to_a_steady_output():
    step = _rates(*[100] * 5, *[150] * 5)
    for arrivals, ok in (("steps", None), ("trace", None), ("poisson", False)):
        assert audits.steady(step, 0.0, 10.0, {"arrivals": arrivals})["ok"] is ok
    assert audits.steady(step, 0.0, 10.0, {"loop": "closed"})["ok"] is False


def test_token_counts():
    def of(uncounted: list[int], tokens: list[int]) -> dict:
        rows = {"uncounted_chunks": uncounted, "output_tokens": tokens}
        return audits.token_counts(pd.DataFrame({"first_token_s": 1.0, "status": "ok", **rows}))

    assert of([0, 0], [4, 4])["ok"] is True
    assert of([0, 3], [4, 4])["ok"] is False  # a server that counts left some out
    at_end, never = of([3, 3], [4, 4]), of([3, 3], [0, 0])
    assert (at_end["ok"], never["ok"]) == (None, None)
    assert at_end["reason"].startswith("token counts per chunk not available")
    assert never["reason"].startswith("token counts not available")

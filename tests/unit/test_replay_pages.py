"""Pages of metrics of both engines, written by hand from the names that they document."""

from pathlib import Path

import pytest

from kvtop_lib.replay import pages

PAGES = Path(__file__).parents[1] / "data" / "pages"


def page(engine: str) -> bytes:
    return (PAGES / f"{engine}.txt").read_bytes()


def test_a_page_of_sglang():
    found = pages.parse(page("sglang"))
    assert (found.engine, found.model) == ("sglang", "glm")
    assert found.values == {
        "running": 6.0,  # two ranks of one copy
        "queued": 2.0,
        "token_usage": 0.4,
        "gen_tok_s": 310.0,
        "kv_used_tokens": 8000.0,
        "kv_evictable_tokens": 2000.0,
        "kv_available_tokens": 10000.0,
        "kv_total_tokens": 20000.0,
        "accept_len": 2.25,
        "width_tokens": 4.0,
        "realtime_tokens_total": 5000.0,  # decoded ones
        "generation_tokens_total": 4400.0,
        "prompt_tokens_total": 70000.0,
        "ttft_seconds_total": 6.0,
        "ttft_requests_total": 40.0,
    }
    assert found.ttft == ((0.1, 10.0), (0.2, 30.0), (0.4, 40.0), (float("inf"), 40.0))


def test_a_page_of_vllm():
    found = pages.parse(page("vllm"))
    assert (found.engine, found.model) == ("vllm", "qwen")
    assert found.values == {
        "running": 9.0,  # two data-parallel engines add up
        "queued": 1.0,
        "token_usage": 0.25,
        "kv_total_tokens": 16000.0,  # 1,000 blocks of 16
        "kv_used_tokens": 4000.0,
        "kv_available_tokens": 12000.0,
        "kv_evictable_tokens": 0.0,
        "prompt_tokens_total": 9000.0,
        "generation_tokens_total": 1000.0,
        "cached_tokens_total": 1200.0,
        "retracted_total": 3.0,
        "spec_verify_calls_total": 200.0,
        "proposed_drafts_total": 600.0,
        "accepted_drafts_total": 300.0,
        "ttft_seconds_total": 1.2,
        "ttft_requests_total": 4.0,
    }


def test_data_parallel_copies_add_up_and_their_ranks_do_not():
    line = 'sglang:{}{{dp_rank="{}",tp_rank="{}"}} {}\n'
    text = "".join(
        line.format(name, dp, tp, value)
        for name, values in {"num_running_reqs": (3, 5), "token_usage": (0.2, 0.6)}.items()
        for dp, value in enumerate(values)
        for tp in range(2)
    )
    assert pages.read(text.encode()) == {"running": 8.0, "token_usage": 0.6}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_lines_that_are_kept_say_the_same(engine):
    whole = page(engine)
    kept = pages.keep(whole, ttft=True)
    assert pages.parse(kept) == pages.parse(whole)
    assert len(kept) < len(whole)
    assert pages.read(pages.keep(whole)) == pages.read(whole)


def test_a_page_of_something_else():
    assert pages.parse(b"# TYPE up gauge\nup 1\n") == pages.Page(None, None, {})
    assert pages.parse(b"<html>\xff</html>") == pages.Page(None, None, {})


def test_what_a_page_does_not_know_is_left_out():
    found = pages.read(
        b"sglang:num_running_reqs NaN\nsglang:num_queue_reqs 3\nsglang:token_usage 1e400\n"
        b"sglang:generation_tokens_total +Inf\n"
    )
    assert found == {"queued": 3.0}

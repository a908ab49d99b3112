"""Real SGLang on the CPU: whatever drafts, the greedy tokens are the baseline's."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from conftest import ARMS

from kvtop_lib.engine.client import call
from kvtop_lib.engine.lossless import greedy_outputs, log_prob_gap

DRAFTING = ARMS[1:]
CHAT = "<|begin|><|user|>\n{}<|end|><|assistant|>\n"
CODE = "def f{}(x, y):\n    total = x * {} + y\n    if total > {}:\n        return {}\n"


@dataclass(frozen=True)
class Reply:
    """What one request returned."""

    ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    verify_steps: int


def prompts(seed: int, count: int) -> list[str]:
    """Chats of 40 to 170 tokens, each opening with a number of its own."""
    rng = random.Random(seed)
    numbers = [[rng.randrange(999) for _ in range(4)] for _ in range(count)]
    bodies = ["".join(CODE.format(*n) for _ in range(rng.randrange(1, 4))) for n in numbers]
    return [CHAT.format(f"Complete\n# {seed}-{i}\n{body}") for i, body in enumerate(bodies)]


def generate(server, texts, lengths, concurrency=8) -> list[Reply]:
    """Greedy continuations, `concurrency` at a time, request i of `lengths[i]` tokens at most."""

    def one(text, length):
        sampling = {"temperature": 0, "max_new_tokens": length}
        reply = call(
            f"{server.url}/generate", {"text": text, "sampling_params": sampling}, timeout_s=600
        )
        meta = reply["meta_info"]
        return Reply(
            tuple(reply["output_ids"]),
            reply["text"],
            meta["prompt_tokens"],
            meta["cached_tokens"],
            meta.get("spec_verify_ct", 0),
        )

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, texts, lengths))


def accepted_per_step(replies) -> float:
    """Tokens per verify step; the first token of a request comes from its prefill."""
    return sum(len(r.ids) - 1 for r in replies) / sum(r.verify_steps for r in replies)


@pytest.fixture(scope="module")
def first_turn(servers):
    """Every arm's replies to fresh prompts."""
    texts = prompts(1, 24)
    return texts, {arm: generate(s, texts, [48] * 24) for arm, s in servers.items()}


@pytest.mark.parametrize("arm", DRAFTING)
def test_fresh_prompts(first_turn, arm):
    _, replies = first_turn
    assert [r.ids for r in replies[arm]] == [r.ids for r in replies["baseline"]]
    assert sum(len(r.ids) for r in replies[arm]) > 24 * 16  # a check of next to nothing is none


@pytest.mark.parametrize("arm", DRAFTING)
def test_second_turns_on_cached_prefixes(servers, first_turn, arm):
    texts, replies = first_turn
    more = CHAT.format("Complete more").removeprefix("<|begin|>")
    again = [t + r.text + "<|end|>" + more for t, r in zip(texts, replies["baseline"], strict=True)]
    expected = generate(servers["baseline"], again, [32] * 24)
    got = generate(servers[arm], again, [32] * 24)
    assert [r.ids for r in got] == [r.ids for r in expected]
    for before, reply in zip(replies["baseline"], got, strict=True):
        # The prefix before the seam of prompt and output, where tokens may join differently.
        assert reply.cached_tokens >= before.prompt_tokens - 8


@pytest.mark.parametrize("arm", DRAFTING)
def test_requests_that_join_and_leave_a_running_batch(servers, arm):
    rng = random.Random(5)
    texts, lengths = prompts(2, 48), [rng.randrange(1, 60) for _ in range(48)]
    expected = generate(servers["baseline"], texts, lengths, concurrency=16)
    got = generate(servers[arm], texts, lengths, concurrency=13)  # other batches on purpose
    assert [r.ids for r in got] == [r.ids for r in expected]


def test_baseline_is_the_same_alone_and_in_company(servers):
    texts = prompts(3, 16)
    alone = generate(servers["baseline"], texts, [24] * 16, concurrency=1)
    servers["baseline"].flush_cache()
    together = generate(servers["baseline"], texts, [24] * 16, concurrency=16)
    assert [r.ids for r in alone] == [r.ids for r in together]


def test_mtp_drafts_are_accepted_and_counted(first_turn):
    _, replies = first_turn
    assert not any(r.verify_steps for r in replies["baseline"])
    assert 1.0 < accepted_per_step(replies["mtp_w2"]) <= 2.0
    assert accepted_per_step(replies["mtp_w2"]) < accepted_per_step(replies["mtp_w4"]) <= 4.0


def test_a_flush_forgets_what_ngram_has_seen(servers):
    server, texts = servers["ngram"], prompts(4, 4)
    server.flush_cache()
    fresh, warm = (generate(server, texts, [40] * 4, concurrency=1) for _ in range(2))
    server.flush_cache()
    forgotten = generate(server, texts, [40] * 4, concurrency=1)
    assert accepted_per_step(warm) > accepted_per_step(fresh)
    assert [r.verify_steps for r in forgotten] == [r.verify_steps for r in fresh]


@pytest.mark.parametrize("arm", ["baseline", "mtp_w2"])
def test_log_probabilities_where_outputs_could_part(servers, arm):
    chat = [{"role": "user", "content": "Complete\ndef add(x, y):\n    total ="}]
    (out,) = greedy_outputs(servers["baseline"].url, [chat], max_tokens=8)
    own, other = out.ids[4], out.ids[4] + 1
    gap = log_prob_gap(servers[arm].url, chat, out.ids[:4], own, other)
    assert gap > 0, "the greedy token is the likelier one"
    assert log_prob_gap(servers[arm].url, chat, out.ids[:4], other, own) == pytest.approx(-gap)


def test_arms_differ_in_drafting_only(servers):
    resolved = {arm: server.resolved() for arm, server in servers.items()}
    for key in (
        "attention_backend",
        "disable_overlap_schedule",
        "max_running_requests",
        "max_total_num_tokens",
        "chunked_prefill_size",
        "dtype",
    ):
        assert len({str(info[key]) for info in resolved.values()}) == 1, key
    assert resolved["baseline"]["attention_backend"] == "intel_amx"  # ours, under its name
    widths = {arm: info["speculative_num_draft_tokens"] for arm, info in resolved.items()}
    assert widths == {"baseline": None, "mtp_w2": 2, "mtp_w4": 4, "ngram": 4}

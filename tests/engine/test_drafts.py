"""Real SGLang with n-grams beside MTP and changing widths: the tokens are the baseline's.

One server after the other, since all a test needs of the baseline are its outputs.
"""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvtop_lib.engine import Server
from kvtop_lib.engine.client import call
from kvtop_lib.params import Arm, load_arm, load_model
from kvtop_lib.terms import KvtopError

TABLE = Arm(
    id="table",
    title="A width by the number of requests",
    draft={
        "method": "mtp_ngram",
        "widths": [1, 2, 4],
        "policy": "table",
        "table": {1: 1, 2: 2, 3: 4, 6: 1, 9: 4},
        "min_match": 2,
    },
    env={"KVTOP_DRAFT_TRACE": "1"},
)
PURE = Arm(
    id="pure",
    title="MTP alone",
    draft={"method": "mtp", "widths": [1, 2, 4], "policy": "fixed:4"},
    env={"KVTOP_DRAFT_TRACE": "1"},
)
ARMS = {a: load_arm(a) for a in ("mtp", "mtp_ngram", "mtp_controller", "mtp_adaptive")}
ARMS |= {"table": TABLE, "pure": PURE}
CHAT = "<|begin|><|user|>\n{}<|end|><|assistant|>\n"
CODE = "def f{}(x, y):\n    total = x * {} + y\n    if total > {}:\n        return {}\n"
MODEL = load_model("tiny-glm")
MODEL = MODEL.model_copy(update={"server_args": {**MODEL.server_args, "max-total-tokens": 20_000}})


def prompts(seed, count):
    rng = random.Random(seed)
    bodies = [
        "".join(CODE.format(*(rng.randrange(999) for _ in range(4))) for _ in range(1 + i % 3))
        for i in range(count)
    ]
    return [CHAT.format(f"Complete\n# {seed}-{i}\n{body}") for i, body in enumerate(bodies)]


def generate(server, tag, texts, lengths, concurrency):
    """Greedy token ids, `concurrency` requests at a time; request i has the id `tag-i`."""

    def one(i):
        body = {
            "text": texts[i],
            "rid": f"{tag}-{i}",
            "sampling_params": {"temperature": 0, "max_new_tokens": lengths[i]},
        }
        return tuple(call(f"{server.url}/generate", body, timeout_s=300)["output_ids"])

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, range(len(texts))))


def generate_and_abort(server, texts):
    """Start requests and abort every second one while it runs."""
    ends = []

    def one(i):
        body = {"text": texts[i], "rid": f"abort-{i}"}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
        try:
            ends.append(call(f"{server.url}/generate", body, timeout_s=300))
        except KvtopError as error:
            ends.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    time.sleep(1)
    for i in range(0, len(texts), 2):
        call(f"{server.url}/abort_request", {"rid": f"abort-{i}"}, timeout_s=60)
    return threads, ends


def everything(server):
    """All outputs that are compared, by the kind of traffic."""
    fresh, rng = prompts(1, 24), random.Random(5)
    lengths = [rng.randrange(1, 60) for _ in fresh]
    out = {"fresh": generate(server, "fresh", fresh, [48] * 24, 8)}
    out["prefix hits"] = generate(server, "again", fresh, [48] * 24, 8)
    out["joining and leaving"] = generate(server, "mixed", prompts(2, 24), lengths, 13)
    threads, ends = generate_and_abort(server, prompts(3, 6))
    out["beside aborts"] = generate(server, "beside", prompts(4, 12), [40] * 12, 4)
    for thread in threads:
        thread.join()
    out["after aborts"] = generate(server, "after", prompts(5, 8), [40] * 8, 8)
    assert len(ends) == 6
    return out


def events(folder):
    """Lines of the draft log."""
    return [json.loads(x) for x in (folder / "drafts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Outputs by arm, and the folder of each arm's logs; the baseline first."""
    found, root = {}, tmp_path_factory.mktemp("drafts")
    for name, arm in {"baseline": load_arm("baseline"), **ARMS}.items():
        with Server.launch(MODEL, arm, root / name) as server:
            found[name] = everything(server)
            assert server.alive
            time.sleep(2.5)  # the totals are due with the next iteration
            generate(server, "last", prompts(6, 1), [4], 1)
            generate(server, "last", prompts(6, 1), [4], 1)
    return found, root


@pytest.mark.parametrize("arm", ARMS)
def test_the_tokens_are_the_baseline_s(outputs, arm):
    found, _ = outputs
    assert found[arm] == found["baseline"]
    assert sum(len(ids) for ids in found[arm]["fresh"]) > 24 * 12


def test_widths_changed_while_it_ran(outputs):
    _, root = outputs
    for arm in ("table", "mtp_ngram"):
        widths = {x["to"] for x in events(root / arm) if x["event"] == "width"}
        assert widths == {1, 2, 4}, arm


def test_both_sources_drafted_and_were_accepted(outputs):
    _, root = outputs
    counts = [x for x in events(root / "table") if x["event"] == "counts"][-1]
    for source in ("mtp", "ngram"):
        proposed, accepted = counts["proposed"][source], counts["accepted"][source]
        assert proposed[0] >= accepted[0] > 0, source
        assert all(p >= a for p, a in zip(proposed, accepted, strict=True))
        assert accepted == sorted(accepted, reverse=True)  # a chain
    assert counts["mtp_skipped"] > 0 and counts["lookups"] > 0


def first_drafts(folder):
    """MTP's next draft by request and number of tokens so far."""
    return {
        (request, tokens): draft
        for x in events(folder)
        if x["event"] == "mtp_next"
        for request, tokens, draft in x["rows"]
    }


def test_mtp_drafts_the_same_after_ngram_tokens_were_committed(outputs):
    _, root = outputs
    pure, mixed = first_drafts(root / "pure"), first_drafts(root / "table")
    both = [k for k in pure.keys() & mixed.keys() if not k[0].startswith("abort")]
    assert len(both) >= 500
    assert [mixed[k] for k in both] == [pure[k] for k in both]


def test_the_isolation_pair_is_one_deployment(tmp_path):
    states = []
    for name in ("mtp_width_on", "mtp_width_off"):
        with Server.launch(MODEL, load_arm(name), tmp_path / name) as server:
            states.append(server.resolved())
    on, off = states
    same = (
        "max_total_num_tokens",
        "max_running_requests",
        "chunked_prefill_size",
        "attention_backend",
        "schedule_conservativeness",
        "mem_fraction_static",
        "dtype",
    )
    keys = {*same, *(k for k in on.keys() | off.keys() if k.startswith("speculative"))}
    assert {k for k in keys if on.get(k) != off.get(k)} == set()

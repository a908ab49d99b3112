"""Real SGLang with n-grams beside MTP and changing widths: the tokens are the baseline's.

Two servers at a time, each for as long as it takes to get its outputs.
"""

import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from kvtop_lib.engine import Server
from kvtop_lib.engine.client import call
from kvtop_lib.engine.iterations_stream import Stream, read_stream
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
ISOLATION = ("mtp_width_on", "mtp_width_off")
SHIPPED = ("mtp", "mtp_ngram", "mtp_controller", "mtp_adaptive", *ISOLATION)
ARMS = {"table": TABLE} | {name: load_arm(name) for name in SHIPPED}
PURE = "mtp_width_on"  # MTP alone, a fixed width
ARMS[PURE] = ARMS[PURE].model_copy(update={"env": {"KVTOP_DRAFT_TRACE": "1"}})
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
    """Start requests and abort every second one while it runs; its answer says so."""
    ends = {}

    def one(i):
        limit = 200 if i % 2 else 1500
        body = {"text": texts[i], "rid": f"abort-{i}"}
        body["sampling_params"] = {
            "temperature": 0,
            "max_new_tokens": limit,
            "ignore_eos": True,
        }
        try:
            reply = call(f"{server.url}/generate", body, timeout_s=600)
            ends[i] = reply["meta_info"]["finish_reason"]["type"]
        except KvtopError as error:
            ends[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    time.sleep(1)
    for i in range(0, len(texts), 2):
        while threads[i].is_alive():  # one that the server has not met yet cannot be aborted
            call(f"{server.url}/abort_request", {"rid": f"abort-{i}"}, timeout_s=60)
            threads[i].join(0.2)
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
    assert [ends[i] for i in range(6)] == ["abort", "length"] * 3
    return out


@dataclass(frozen=True)
class Served:
    """What a server has given: outputs by the kind of traffic, its state, both its logs."""

    out: dict[str, list[tuple[int, ...]]]
    resolved: dict
    events: list[dict]
    stream: Stream


def serve(arm, folder):
    """Everything of one server."""
    with Server.launch(MODEL, arm, folder, timeout_s=1800) as server:
        out, resolved = everything(server), server.resolved()
        assert server.alive
        time.sleep(2.5)  # the totals are due with the next iteration
        generate(server, "last", prompts(6, 1), [4], 1)
        generate(server, "last", prompts(6, 1), [4], 1)
    log = folder / "drafts.jsonl"
    lines = log.read_text().splitlines() if log.is_file() else []
    stream = read_stream(server.iterations_file)
    return Served(out, resolved, [json.loads(x) for x in lines], stream)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`Served` by arm, the baseline among them."""
    root, arms = tmp_path_factory.mktemp("drafts"), {"baseline": load_arm("baseline"), **ARMS}
    with ThreadPoolExecutor(2) as pool:
        asked = {name: pool.submit(serve, arm, root / name) for name, arm in arms.items()}
        return {name: answer.result() for name, answer in asked.items()}


@pytest.mark.parametrize("arm", ARMS)
def test_the_tokens_are_the_baseline_s(served, arm):
    assert served[arm].out == served["baseline"].out
    assert sum(len(ids) for ids in served[arm].out["fresh"]) > 24 * 12


TAGS = {
    "fresh": "fresh", "again": "prefix hits", "mixed": "joining and leaving",
    "beside": "beside aborts", "after": "after aborts",
}  # fmt: skip


@pytest.mark.parametrize("arm", ["baseline", *ARMS])
def test_the_iterations_committed_what_the_clients_got(served, arm):
    stream, committed = served[arm].stream, Counter()
    for record in stream.records:
        committed.update(dict(zip(record["requests"], record["committed"], strict=True)))
    for tag, kind in TAGS.items():
        wanted = [len(ids) for ids in served[arm].out[kind]]
        assert [committed[f"{tag}-{i}"] for i in range(len(wanted))] == wanted, kind
    assert (stream.ended, stream.dropped) == ("SIGTERM", 0)


def test_widths_changed_while_it_ran(served):
    widths = {x["to"] for x in served["table"].events if x["event"] == "width"}
    assert widths == {1, 2, 4}


def test_the_controller_tried_its_widths(served):
    for arm in ("mtp_ngram", "mtp_controller"):
        widths = {x["to"] for x in served[arm].events if x["event"] == "width"}
        assert widths == {1, 2, 4}, arm
        totals = [x for x in served[arm].events if x["event"] == "counts"][-1]
        assert totals["heads_caught_up"] > 0, arm  # put off at width 1, run when it ended


def test_both_sources_drafted_and_were_accepted(served):
    counts = [x for x in served["table"].events if x["event"] == "counts"][-1]
    for source in ("mtp", "ngram"):
        proposed, accepted = counts["proposed"][source], counts["accepted"][source]
        assert proposed[0] >= accepted[0] > 0, source
        assert all(p >= a for p, a in zip(proposed, accepted, strict=True))
        assert accepted == sorted(accepted, reverse=True)  # a chain
    assert counts["mtp_skipped"] > 0 and counts["lookups"] > 0


def first_drafts(events):
    """MTP's next draft by request and number of tokens so far."""
    return {
        (request, tokens): draft
        for x in events
        if x["event"] == "mtp_next"
        for request, tokens, draft in x["rows"]
    }


def test_mtp_drafts_the_same_after_ngram_tokens_were_committed(served):
    pure, mixed = first_drafts(served[PURE].events), first_drafts(served["table"].events)
    both = [k for k in pure.keys() & mixed.keys() if not k[0].startswith("abort")]
    assert len(both) >= 500
    assert [mixed[k] for k in both] == [pure[k] for k in both]


def test_the_isolation_pair_is_one_deployment(served):
    on, off = (served[name].resolved for name in ISOLATION)
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

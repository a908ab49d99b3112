"""Real SGLang with the recorder: what the iterations committed is what the clients got."""

import numpy as np
import pytest

from kvtop_lib.engine import SERVED_NAME
from kvtop_lib.engine.iterations_stream import PARTS, cut
from kvtop_lib.metrics import Recording, derive
from kvtop_lib.replay import Plan, SessionPool, flush, run_point
from kvtop_lib.trace import Session, Turn

PLAN = Plan(
    burn_in_s=0.5, warmup_s=0.5, window_s=3, drain_s=120, timeout_s=120, output="natural",
    stagger_s=0.3, max_output_tokens=40,
)  # fmt: skip
SESSIONS = [  # more than a point can play: one that runs out of them is not drained
    Session(
        f"s{i}",
        "t",
        (Turn(({"role": "user", "content": f"# {i}\ndef f{i}(x):"},), "x", 8, "stop", 10),),
    )
    for i in range(3000)
]
LANES = 3
PARTS_OF = {
    "baseline": {"target"},
    "mtp_w4": {"draft", "verify", "draft_extend"},
    "ngram": {"ngram", "verify"},
}


@pytest.fixture(scope="module", params=PARTS_OF)
def recorded(request, servers, tmp_path_factory):
    """(arm, recording of a drained point, its audits)."""
    arm, server = request.param, servers[request.param]
    flush(server.url)
    chosen = SessionPool(SESSIONS, [LANES], seed=3).slice(LANES)
    point = run_point(
        server.url, SERVED_NAME, chosen, LANES, PLAN, 3, tmp_path_factory.mktemp(arm) / "c3",
        labels={"arm": arm, "block": 1, "workload": "agent-tiny", "run": "r"}, progress="off",
    )  # fmt: skip
    cut(server.iterations_file, point, wait_s=60)
    return arm, Recording.read(point), derive(point)["audits"]


def test_committed_tokens_are_the_client_s_tokens_exactly(recorded):
    _, rec, audits = recorded
    assert (rec.requests["status"] == "ok").all() and len(rec.requests) >= LANES
    assert rec.iterations.attrs["recorder"]["complete"]
    assert rec.iterations["committed_tokens"].sum() == rec.requests["output_tokens"].sum()
    assert audits["recorded_tokens"]["ok"] is True


def test_every_request_is_followed_from_its_prefill_to_its_end(recorded):
    _, rec, _ = recorded
    rows = rec.iterations[["mode", "requests", "committed"]]
    rows = rows.explode(["requests", "committed"]).dropna(subset=["requests"])
    by_request = rows.groupby("requests")["committed"].sum()
    wanted = rec.requests.set_index("response_id")["output_tokens"]
    assert by_request.reindex(wanted.index).tolist() == wanted.tolist()
    first = rows.groupby("requests")["mode"].first()
    assert set(first.reindex(wanted.index)) <= {"prefill", "mixed"}


def test_accepted_drafts_and_verify_steps_are_those_that_the_server_reports(recorded):
    arm, rec, _ = recorded
    if arm == "baseline":
        assert rec.iterations["accepted_drafts"].isna().all()
        return
    steps = rec.iterations[rec.iterations["mode"] == "verify"]
    rows = steps[["requests", "accepted", "source"]].explode(["requests", "accepted", "source"])
    found = rows.groupby("requests")["accepted"].agg(["sum", "count"])
    requests = rec.requests.dropna(subset=["accepted_hist"]).set_index("response_id")
    accepted = requests["accepted_hist"].map(lambda h: int(np.arange(len(h)) @ np.asarray(h)))
    found = found.reindex(requests.index)
    assert found["sum"].tolist() == accepted.tolist()
    assert found["count"].tolist() == requests["verify_steps"].tolist()
    assert set(rows["source"]) == {"ngram" if arm == "ngram" else "mtp"}


def test_the_marked_parts_add_up_to_the_iteration(recorded):
    arm, rec, _ = recorded
    it = rec.iterations
    share = it["unaccounted_s"] / it["dur_s"]
    assert share.min() >= -1e-6  # nothing is booked twice
    assert (share <= 0.02).mean() >= 0.95, share.describe()
    decodes = it[it["mode"].isin(["decode", "verify"])]
    there = {p for p in PARTS if (decodes[f"{p}_s"] > 0).any()}
    assert PARTS_OF[arm] <= there
    assert not (there & {"draft", "draft_extend", "ngram", "verify", "target"}) - PARTS_OF[arm]


def test_pools_add_up(recorded):
    arm, rec, _ = recorded
    it, facts = rec.iterations, rec.iterations.attrs["recorder"]
    pool = it[["kv_used", "kv_evictable", "kv_free"]].sum(axis=1)
    assert (pool == facts["kv_tokens"]).all()
    assert it["draft_kv_used"].notna().all() == (arm == "mtp_w4")

"""What a server takes is found out before a point, and what it does not take is left out."""

from __future__ import annotations

import asyncio
import json

import pytest
from replay_help import PLAN, play_point
from scripted_server import Play, ScriptedServer

from kvtop_lib.metrics import derive
from kvtop_lib.metrics.point import summary
from kvtop_lib.replay.client import Client
from kvtop_lib.replay.dialect import EXTRAS, Dialect, learn
from kvtop_lib.replay.reply import Raw, parse
from kvtop_lib.replay.request import body, transcript


def learned(server: ScriptedServer, api: str = "chat") -> Dialect:
    async def main() -> Dialect:
        async with Client(5.0) as client:
            await learn(client, server.url, "m", api)
            return client.dialect

    return asyncio.run(main())


def test_sglang_is_not_asked_for_anything():
    with ScriptedServer() as server:
        assert learned(server) == Dialect()
    assert server.probes == server.bodies == []


@pytest.mark.parametrize(
    ("refuses", "left", "dropped", "asked"),
    [
        ((), ("return_spec_tokens_details", "continuous_usage_stats", "usage"), (), 1),
        (
            ("return_spec_tokens_details",),
            ("continuous_usage_stats", "usage"),
            ("return_spec_tokens_details",),
            5,
        ),
        (
            ("continuous_usage_stats",),
            ("return_spec_tokens_details", "usage"),
            ("continuous_usage_stats",),
            5,
        ),
        (
            ("return_spec_tokens_details", "continuous_usage_stats"),
            ("usage",),
            ("return_spec_tokens_details", "continuous_usage_stats"),
            5,
        ),
        (
            ("stream_options", "return_spec_tokens_details"),
            (),
            ("return_spec_tokens_details", "continuous_usage_stats", "usage"),
            4,
        ),
    ],
)
def test_refused_fields_are_dropped(refuses, left, dropped, asked):
    with ScriptedServer(sglang=False, refuses=refuses) as server:
        found = learned(server)
    assert (found.server, found.extras, found.refused) == ("other", left, dropped)
    assert len(server.probes) == asked and server.bodies == []
    fields = json.loads(body("m", [{"role": "user", "content": "x"}], PLAN, None, found))
    assert not set(refuses) & {*fields, *fields.get("stream_options", {})}


def test_a_refusal_for_another_reason_leaves_everything():
    with ScriptedServer(sglang=False, refuses=("temperature",)) as server:
        found = learned(server)
    assert found.refused == () and set(found.extras) < set(EXTRAS)


def test_a_point_on_a_strict_server_says_what_it_left_out(tmp_path):
    plays = ScriptedServer(
        lambda b, n: Play(usage="last", gap_s=0.01),
        sglang=False,
        refuses=("continuous_usage_stats",),
    )
    with plays as server:
        requests, chunks, facts = play_point(server, tmp_path, c=2)
    assert set(requests.status) == {"ok"} and set(requests.output_tokens) == {8}
    assert facts["client"]["dialect"]["refused"] == ["continuous_usage_stats"]
    assert len(server.bodies) == len(requests)  # the questions before are no traffic
    assert set(requests.uncounted_chunks) == {8} and chunks.tokens_total.isna().all()
    point = derive(tmp_path)
    assert point["token_counts"] == "total"
    assert point["audits"]["token_counts"]["ok"] is None
    if point["status"] == "ok":  # a busy machine may make the client late
        assert "output_tok_s" not in point and "tpot_s" not in point
        assert point["ttft_s"]["p50"] > 0 and point["request_tok_s"]["p50"] > 0
        assert "token counts per chunk not available" in summary(point)


def test_the_route_without_chat(tmp_path):
    async def main(url: str) -> Raw:
        raw = Raw()
        async with Client(5.0) as client:
            dialect = await learn(client, url, "m", "completions")
            data = body("m", [{"role": "user", "content": "x"}], PLAN, None, dialect)
            await client.send(url + dialect.path, data, raw)
        return raw

    with ScriptedServer(lambda b, n: Play(bundles=(2, 3))) as server:
        reply = parse(asyncio.run(main(server.url)))
    assert (reply.status, list(reply.totals)) == ("ok", [2, 5])
    assert server.bodies[0]["prompt"] == "user:x\nassistant:" and "messages" not in server.bodies[0]


def test_a_transcript_grows_at_its_end_only():
    first = [{"role": "user", "content": "a"}]
    later = [*first, {"role": "assistant", "content": "bc"}, {"role": "tool", "content": None}]
    assert transcript(later).startswith(transcript(first) + "bc")


def test_the_command_line_chooses_the_route(tmp_path):
    from kvtop_lib.replay.__main__ import main
    from kvtop_lib.store import read_json

    times = "--burn-in 0 --warmup 0 --window 0.5 --drain 2 --concurrency 1".split()
    for api, field in (("completions", "prompt"), ("chat", "messages")):
        with ScriptedServer() as server:
            args = ["--url", server.url, "--model", "m", "--out", str(tmp_path / api)]
            main([*args, "--api", api, "--trace", "builtin:agent-tiny", *times])
            assert server.bodies and all(field in b for b in server.bodies)
        assert read_json(tmp_path / api / "recording.json")["client"]["dialect"]["api"] == api

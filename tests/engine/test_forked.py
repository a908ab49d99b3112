"""A server that was forked is the one that would have been started anew."""

from kvtop_lib.caller import CALLER
from kvtop_lib.engine import Server
from kvtop_lib.engine.lossless import greedy_outputs
from kvtop_lib.params import load_arm, load_model

OF_ONE_START = (  # in names of its own values
    "port", "addr", "file", "internal_states", "nonce", "startup_time", "launch_command",
)  # fmt: skip


def settled(info: dict) -> dict:
    """What the engine resolved, but for what is of one start alone."""
    return {k: v for k, v in info.items() if not any(word in k for word in OF_ONE_START)}


def test_arguments_kv_and_outputs_are_the_same(servers, tmp_path, monkeypatch):
    forked = servers["mtp_w4"]
    assert forked.warm
    monkeypatch.delenv(CALLER)
    prompts = [[{"role": "user", "content": f"Count from {i} to nine."}] for i in range(8)]
    model, arm = load_model("tiny-glm"), load_arm("mtp_w4")
    with Server.launch(model, arm, tmp_path, timeout_s=1800) as anew:
        assert not anew.warm
        infos = [settled(server.resolved()) for server in (forked, anew)]
        differ = {k for k in infos[0] | infos[1] if infos[0].get(k) != infos[1].get(k)}
        assert not differ, {k: [i.get(k) for i in infos] for k in differ}
        assert infos[0]["max_total_num_tokens"] > 0
        outputs = [greedy_outputs(s.url, prompts, max_tokens=32) for s in (forked, anew)]
    assert outputs[0] == outputs[1]
    logs = [s.log_file.read_text().splitlines() for s in (forked, anew)]
    hooks = [{x.split("] ", 1)[-1] for x in log if "] Applied" in x} for log in logs]
    assert hooks[0] == hooks[1] != set()  # the plug-in does in both what it does in one

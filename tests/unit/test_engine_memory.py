"""Where a server's memory goes: from the recorder's first line, else as the engine says."""

import json

import pytest
import torch

from kvtop_lib.engine.memory import memory_split
from kvtop_lib.sglang_plugin.recorder_facts import weights_bytes

SAID = {
    "device": "cuda",
    "max_total_num_tokens": 1000,
    "internal_states": [{"memory_usage": {"weight": 2.0, "kvcache": 0.5}}],
}


def test_the_recorder_knows_exactly(tmp_path):
    file = tmp_path / "iterations.jsonl"
    sizes = {
        "weights_bytes": 10, "draft_weights_bytes": 3, "kv_bytes": 40, "draft_kv_bytes": 4,
    }  # fmt: skip
    file.write_text(json.dumps({"stream": 1, **sizes, "pid": 5}) + '\n{"i": 0}\n')
    tokens = {"kv_tokens": 1000, "draft_kv_tokens": 1000}  # the same slots in both pools
    assert memory_split(SAID, file) == sizes | tokens | {"source": "recorder"}


@pytest.mark.parametrize("text", [None, "", "torn {", "[]\n", '{"stream": 1}\n'])
def test_without_a_recorder_it_is_what_the_engine_says(tmp_path, text):
    file = tmp_path / "iterations.jsonl"
    if text is not None:
        file.write_text(text)
    assert memory_split(SAID, file if text is not None else None) == {
        "weights_bytes": 2 * 2**30,
        "draft_weights_bytes": None,
        "kv_bytes": 2**29,
        "draft_kv_bytes": None,
        "kv_tokens": 1000,
        "draft_kv_tokens": None,
        "source": "engine",
    }


def test_a_cpus_free_memory_says_nothing_of_weights():
    found = memory_split(SAID | {"device": "cpu"}, None)
    assert found["weights_bytes"] is None and found["kv_bytes"] == 2**29
    assert memory_split({}, None)["source"] is None


def test_weights_that_a_draft_shares_count_once():
    target = torch.nn.Linear(10, 20)  # 220 numbers
    draft = torch.nn.Linear(20, 20)  # 420 numbers of which 20 are the target's
    draft.bias = target.bias
    draft.register_buffer("scale", torch.ones(5, dtype=torch.bfloat16))
    seen: set[int] = set()
    assert weights_bytes(target, seen) == 220 * 4
    assert weights_bytes(draft, seen) == 400 * 4 + 5 * 2

"""A small hand-written sample of every trace format, and where the shared real samples lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "traces"

MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1124, "output_length": 60, "hash_ids": [0, 1, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 0, "hash_ids": [9]}
{"timestamp": 9000, "input_length": 600, "output_length": 70, "hash_ids": [7, 8]}
"""
EXTENDED = """\
{"session_id": "a", "timestamp": 500, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}
{"session_id": "b", "timestamp": 700, "text_input": "What is 2 + 2?", "output_length": 6}
{"session_id": "a", "delay": 2500, "input_length": 1500, "output_length": 7, "hash_ids": [1, 2, 3]}
{"session_id": "b", "timestamp": 4700, "text_input": "And 3 + 3?", "output_length": 8}
{"session_id": "c", "messages": [{"role": "user", "content": "One"}], "output_length": 3}
{"session_id": "c", "messages": [{"role": "user", "content": "One"}, \
{"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"}], "output_length": 4}
"""
QWEN = """\
{"chat_id": 1, "parent_chat_id": -1, "timestamp": 10.5, "input_length": 40, "output_length": 9, \
"type": "text", "turn": 1, "hash_ids": [11, 12, 13]}
{"chat_id": 2, "parent_chat_id": -1, "timestamp": 11.0, "input_length": 16, "output_length": 8, \
"type": "text", "turn": 1, "hash_ids": [21]}
{"chat_id": 3, "parent_chat_id": 1, "timestamp": 30.5, "input_length": 70, "output_length": 7, \
"type": "text", "turn": 2, "hash_ids": [11, 12, 14, 15, 16]}
{"chat_id": 4, "parent_chat_id": 1, "timestamp": 40.5, "input_length": 36, "output_length": 6, \
"type": "text", "turn": 2, "hash_ids": [11, 12, 17]}
"""
WEKA = json.dumps(
    {
        "id": "trace_7", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
        "tool_tokens": 10, "system_tokens": 10,
        "requests": [
            {"t": 0.0, "type": "n", "in": 140, "out": 20, "hash_ids": [1, 2], "api_time": 2.0,
             "think_time": 0.0},
            {"t": 3.0, "type": "subagent", "agent_id": "x", "requests": [
                {"t": 3.0, "type": "s", "in": 130, "out": 30, "hash_ids": [1, 3]},
                {"t": 9.0, "type": "s", "in": 200, "out": 31, "hash_ids": [1, 3, 4],
                 "think_time": 1.5}]},
            {"t": 12.0, "type": "n", "in": 270, "out": 21, "hash_ids": [1, 2, 5, 6]},
        ],
    }
)  # fmt: skip
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.9799601,3180,8
2023-11-16 18:17:09.9799600,110,27
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
TRACELAB = "".join(
    json.dumps(row) + "\n"
    for row in [
        {"provider": "p", "session_id": "s", "round_index": 1, "input_tokens_total": 80,
         "prefix_tokens": 50, "newly_append_tokens": 30, "output_tokens": 12, "timing_events": [
            {"event_type": "tool_result", "timestamp": "2026-06-01T05:40:14.500Z"},
            {"event_type": "text", "timestamp": "2026-06-01T05:40:20.000Z"}]},
        {"provider": "p", "session_id": "s", "round_index": 0, "input_tokens_total": 48,
         "prefix_tokens": 30, "newly_append_tokens": 18, "output_tokens": 11, "timing_events": [
            {"event_type": "user_message", "timestamp": "2026-06-01T05:40:00.000Z"},
            {"event_type": "tool_call", "timestamp": "2026-06-01T05:40:10.000Z"}]},
    ]
)  # fmt: skip
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who am I?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id":7}'}}]},
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "Ann"},
    {"role": "assistant", "content": [{"type": "text", "text": "You are Ann."}]},
    {"role": "user", "content": "Bye"},
]  # fmt: skip
MESSAGES = json.dumps({"messages": TALK}) + "\n" + json.dumps({"messages": TALK[:3]}) + "\n"
TAU_BENCH = json.dumps([{"task_id": 5, "reward": 1.0, "info": {}, "trial": 0, "traj": TALK}])
SWE_AGENT = json.dumps(
    {
        "environment": "swe_main",
        "trajectory": [{"action": "ls", "execution_time": 1.25}, {"action": "exit"}],
        "history": [
            {"role": "system", "content": "Work.", "agent": "main"},
            {"role": "user", "content": "Fix it.", "agent": "main"},
            {"role": "assistant", "content": "I list.\nls", "action": "ls", "agent": "main"},
            {"role": "user", "content": "a.py", "agent": "main"},
            {"role": "assistant", "content": "Done.", "action": "exit", "agent": "main"},
        ],
        "info": {},
    },
    indent=2,
)
SHAREGPT = json.dumps(
    [
        {"id": "q1", "conversations": [
            {"from": "gpt", "value": "Left over from before."},
            {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
            {"from": "human", "value": "More"}, {"from": "gpt", "value": "No more"}]},
        {"id": "q2", "conversations": [{"from": "human", "value": "Alone"}]},
    ],
    indent=1,
)  # fmt: skip
OURS = (
    '{"format":"kvtop-sessions","version":1,"name":"hand","recorded_with":{"engine":"pen"}}\n'
    '{"id":"s1","task":"greet","withdrawn":0,"turns":[{"messages":[{"role":"user","content":"Hi"}],'
    '"output":"Hello.","output_tokens":3,"finish_reason":"stop","prompt_tokens":20,"think_s":0.0,'
    '"looped":false}]}\n'
)
SAMPLES = {
    "kvtop-sessions": OURS,
    "mooncake": MOONCAKE,
    "mooncake extended": EXTENDED,
    "qwen-bailian": QWEN,
    "weka": WEKA,
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "tracelab": TRACELAB,
    "openai-messages": MESSAGES,
    "tau-bench": TAU_BENCH,
    "swe-agent": SWE_AGENT,
    "sharegpt": SHAREGPT,
}
"""Format (and variant) -> text of a file, whose name tells nothing."""


def shared(name: str) -> Path:
    """A real sample beside the checkout; without it the test says why it does not run."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the real traces are no part of the repository: there is no {path}")
    return path

"""Real traces, each replayed end to end: the engine's cached tokens are those that the text tells.

The truth is made here from the prompts themselves: the template is written out, the tokenizer's
numbers are compared one by one with those of every prompt that was sent before.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from tokenizers import Tokenizer

from kvtop_lib.engine import SERVED_NAME
from kvtop_lib.params import load_model
from kvtop_lib.replay.__main__ import main as replay
from kvtop_lib.store import read_json
from kvtop_lib.trace import load_trace

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
from trace_samples import SAMPLES as WRITTEN  # noqa: E402

MODEL = load_model("tiny-glm")
SLACK = 2  # a page and a token
HELD = 20_000  # of the server's 40,000 tokens of cache: the latest ones are surely still there
FIT = ["--max-context", "1500", "--max-output-tokens", "8"]
TIMES = "--burn-in 0 --warmup 0 --window 4 --drain 60 --timeout 120 --concurrency 1".split()


@dataclass(frozen=True)
class Sample:
    """A real trace beside the checkout, the hand-written one in its place, and how they fit."""

    real: str
    written: str
    scale: str
    follows: bool  # has turns behind a first one


SAMPLES = {
    "azure": Sample("azure/AzureLLMInferenceTrace_code_head2000.csv", "azure", "0.25", False),
    "mooncake": Sample("mooncake/conversation_trace_head1000.jsonl", "mooncake", "0.03", False),
    "weka": Sample("weka", "weka", "0.03125", True),
    "tau_bench": Sample("tau_bench/gpt-4o-airline_head30.json", "tau-bench", "0.2", True),
    "swe_agent": Sample("swe_agent", "swe-agent", "0.15", True),
    "tracelab": Sample("tracelab/derived_round_trace.jsonl", "tracelab", "0.0625", True),
}


def trace_file(sample: Sample, folder: Path) -> Path:
    """The real sample, or the hand-written one where there is none."""
    real = ROOT.parent / "shared" / "traces" / sample.real
    if real.exists():
        return real
    (folder / "trace").write_text(WRITTEN[sample.written], encoding="utf-8")
    return folder / "trace"


def in_common(a: list[int], b: list[int]) -> int:
    """Leading tokens that two prompts share."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def prompts(file: Path, sample: Sample, requests: pd.DataFrame) -> list[list[int]]:
    """Tokens of every request's prompt, in the chat template of the model."""
    tokenizer = Tokenizer.from_file(str(MODEL.path / "tokenizer.json"))
    trace = load_trace(file, scale_tokens=float(sample.scale), tokenizer=tokenizer)
    sessions = {s.id: s for s in trace.sessions}
    texts = [
        "<|begin|>"
        + "".join(
            f"<|{m['role']}|>\n{m['content']}<|end|>"
            for m in sessions[r.session].request_messages(r.turn)
        )
        + "<|assistant|>\n"
        for r in requests.itertuples()
    ]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def bounds(sent: list[list[int]], requests: pd.DataFrame, i: int) -> tuple[int, int]:
    """Cached tokens of request i: what it has in common with prompts before it, the latest surely.

    A prompt that goes on from a whole earlier one may also hit the answer to that.
    """
    low = high = since = 0
    for j in range(i - 1, -1, -1):
        common, answered = in_common(sent[i], sent[j]), int(requests["output_tokens"][j])
        since += len(sent[j]) + answered
        low = max(low, common if since < HELD else 0)
        high = max(high, common + (answered if common == len(sent[j]) else 0))
    return low, high


@pytest.mark.parametrize("name", SAMPLES)
def test_cached_tokens_are_those_of_the_prompts_before(name, servers, tmp_path):
    server, sample, out = servers["baseline"], SAMPLES[name], tmp_path / "point"
    file = trace_file(sample, tmp_path)
    options = ["--trace", str(file), "--scale-tokens", sample.scale, *FIT, *TIMES]
    replay(["--url", server.url, "--model", SERVED_NAME, "--out", str(out), *options])
    point = read_json(out / "point.json")
    requests = pd.read_parquet(out / "requests.parquet")
    assert len(requests) >= 1 and set(requests["status"]) == {"ok"}
    assert not sample.follows or (requests["turn"] > 0).any()
    sent = prompts(file, sample, requests)
    assert [len(ids) for ids in sent] == requests["prompt_tokens"].tolist()
    for i, cached in enumerate(requests["cached_tokens"]):
        low, high = bounds(sent, requests, i)
        assert low - SLACK <= cached <= high + SLACK, (i, low, cached, high)
    assert (requests["output_tokens"] <= 8).all()
    for audit in ("token_counts", "tokens", "prefix_hits"):
        assert point["audits"][audit]["ok"] is True, point["audits"][audit]

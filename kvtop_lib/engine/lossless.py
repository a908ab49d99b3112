"""Lossless probe: greedy outputs of two arms must be equal token by token.

On the CPU drafts are verified greedily whatever the temperature; the probe asks for temperature 0
and serves float32, since in bfloat16 two correct arms differ at near-ties.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from kvtop_lib.engine.client import call
from kvtop_lib.engine.command import SERVED_NAME
from kvtop_lib.terms import KvtopError

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Output:
    """One greedy continuation: token ids, text, and why it ended."""

    ids: tuple[int, ...]
    text: str
    finish_reason: str

    @property
    def sha256(self) -> str:
        """Hash of the token ids, as JSON."""
        return hashlib.sha256(json.dumps(list(self.ids)).encode()).hexdigest()


@dataclass(frozen=True)
class Divergence:
    """Where two outputs part: prompt (0-based), token position, and the ids there (None: ended)."""

    prompt: int
    position_tokens: int
    a: int | None
    b: int | None


@dataclass(frozen=True)
class Comparison:
    """Two arms' outputs on the same prompts."""

    prompts: int
    tokens: int  # compared positions, outputs of the first arm
    divergences: tuple[Divergence, ...]

    @property
    def equal(self) -> int:
        """Prompts with identical outputs."""
        return self.prompts - len(self.divergences)

    @property
    def lossless(self) -> bool:
        """Whether every output is identical (False with no prompt: nothing was shown)."""
        return self.prompts > 0 and not self.divergences


def greedy_outputs(
    url: str,
    prompts: Sequence[Messages],
    *,
    max_tokens: int = 64,
    concurrency: int = 8,
    timeout_s: float = 120,
) -> list[Output]:
    """Greedy outputs of a server for chat `prompts`, in their order, `concurrency` at a time.

    Raises
    ------
    KvtopError
        When a request fails or the server gives no token ids.
    """

    def one(messages: Messages) -> Output:
        body = {
            "model": SERVED_NAME,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        reply = call(f"{url}/v1/chat/completions", body, timeout_s=timeout_s)
        choice = reply["choices"][0]
        if choice.get("response_token_ids") is None:
            raise KvtopError("the server gave no token ids (return_token_ids); update the engine")
        text = choice["message"].get("content") or ""
        return Output(tuple(choice["response_token_ids"]), text, choice["finish_reason"])

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, prompts))


def log_prob_gap(
    url: str, messages: Messages, shared: Sequence[int], a: int, b: int, timeout_s: float = 120
) -> float:
    """Log-probability of token `a` minus that of `b` behind a prompt and an output's beginning.

    The server reads all of it anew, as a prompt: where it is a near-tie that parted two outputs,
    the gap is small, though not to the last bit the one that was decided upon.

    Raises
    ------
    KvtopError
        When the server does not answer or gives no log-probabilities.
    """
    body = {
        "model": SERVED_NAME, "messages": list(messages), "max_tokens": 1, "temperature": 0,
        "return_token_ids": True,
    }  # fmt: skip
    reply = call(f"{url}/v1/chat/completions", body, timeout_s=timeout_s)
    prompt = reply["choices"][0].get("prompt_token_ids")
    if prompt is None:
        raise KvtopError("the server gave no token ids of the prompt (return_token_ids)")
    body = {
        "input_ids": [*prompt, *shared], "return_logprob": True, "token_ids_logprob": [a, b],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
    }  # fmt: skip
    reply = call(f"{url}/generate", body, timeout_s=timeout_s)
    if not (found := reply["meta_info"].get("output_token_ids_logprobs")):
        raise KvtopError("the server gave no log-probabilities (token_ids_logprob)")
    (first, *_), (second, *_) = found[0]
    return float(first - second)


def compare(a: Sequence[Output], b: Sequence[Output]) -> Comparison:
    """Compare two arms' outputs token by token.

    Raises
    ------
    KvtopError
        When the numbers of outputs differ.
    """
    if len(a) != len(b):
        raise KvtopError(f"{len(a)} and {len(b)} outputs cannot be compared: run the same prompts")
    found = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.ids != y.ids:
            pairs = zip(x.ids, y.ids, strict=False)
            shorter = min(len(x.ids), len(y.ids))
            at = next((k for k, (p, q) in enumerate(pairs) if p != q), shorter)
            ends = [o.ids[at] if at < len(o.ids) else None for o in (x, y)]
            found.append(Divergence(i, at, *ends))
    return Comparison(len(a), sum(len(o.ids) for o in a), tuple(found))


def to_json(outputs: Sequence[Output]) -> list[dict]:
    """Outputs as plain data for ``lossless.json``."""
    return [{**asdict(o), "ids": list(o.ids), "sha256": o.sha256} for o in outputs]


def from_json(data: Sequence[dict]) -> list[Output]:
    """Outputs from the data that `to_json` made."""
    return [Output(tuple(d["ids"]), d["text"], d["finish_reason"]) for d in data]

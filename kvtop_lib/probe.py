"""The lossless probe of a deployment: its greedy outputs beside the baseline's, token by token.

The baseline's outputs are stored once, in ``<run>/baseline/deploy/lossless.json``; every drafting
arm answers the same prompts, several at a time so that batches form, and is compared with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop_lib.digest import digest
from kvtop_lib.engine import Output, compare, greedy_outputs
from kvtop_lib.engine.lossless import Divergence, from_json, log_prob_gap, to_json
from kvtop_lib.stats import divergence, same_rate
from kvtop_lib.store import read_json, write_json
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Trace

CONCURRENCY = 8
FILE = "lossless.json"
Messages = list[dict[str, str]]
EXEMPT = {
    "role": "exempt", "prompts": 0, "c": CONCURRENCY, "tokens": 0, "matched": None,
    "mismatches": [],
}  # fmt: skip
"""Result of an arm that simulates acceptance (`kvtop_lib.params.Arm.lossless`)."""


def probe_prompts(trace: Trace, n: int) -> list[Messages]:
    """First `n` distinct requests of a trace, at turns that differ from session to session.

    Raises
    ------
    KvtopError
        When the trace has fewer requests.
    """
    if n > trace.requests:
        raise KvtopError(f"the trace has {trace.requests} requests, a probe of {n} does not fit")
    longest = max((len(s.turns) for s in trace.sessions), default=0)
    asked = [
        (s, (i + shift) % len(s.turns))
        for shift in range(longest)
        for i, s in enumerate(trace.sessions)
        if shift < len(s.turns)
    ]
    return [s.request_messages(k) for s, k in asked[:n]]


def probe(
    url: str, folder: Path, baseline: Path, prompts: list[Messages], lossless: bool = True
) -> dict[str, Any]:
    """Answer `prompts`, keep the outputs, and compare them with the baseline's.

    Parameters
    ----------
    url : a running server.
    folder : where ``lossless.json`` is written.
    baseline : folder of the baseline's deployment; the same folder for the baseline itself.
    lossless : `kvtop_lib.params.Arm.lossless`; an arm that cannot be is asked nothing.

    Returns
    -------
    dict
        ``role`` ("reference", "compared" or "exempt"), ``prompts``, ``c``, ``tokens``,
        ``matched`` (prompts with identical outputs; None unless compared) and ``mismatches``
        (prompt, position in tokens, both token ids, ``gap``:
        `kvtop_lib.engine.lossless.log_prob_gap`, None where it is not known). Where there are
        any, ``divergence``: `kvtop_lib.stats.divergence`.

    Raises
    ------
    KvtopError
        When a request fails, or the baseline's outputs are missing or of other prompts.
    """
    if not lossless:
        return EXEMPT
    folder, baseline = Path(folder), Path(baseline)
    reference = folder.resolve() == baseline.resolve()
    key = digest(prompts)
    expected = None if reference else _outputs(baseline / FILE, key)
    outputs = greedy_outputs(url, prompts, concurrency=CONCURRENCY)
    write_json(folder / FILE, {"prompts": key, "c": CONCURRENCY, "outputs": to_json(outputs)})
    result = {
        "role": "reference" if reference else "compared",
        "prompts": len(prompts),
        "c": CONCURRENCY,
        "tokens": sum(len(o.ids) for o in outputs),
        "matched": None,
        "mismatches": [],
    }
    if expected is not None:
        found = compare(expected, outputs)
        pairs = [
            {
                "prompt": d.prompt, "position": d.position_tokens, "baseline": d.a, "arm": d.b,
                "gap": _gap(url, prompts[d.prompt], outputs[d.prompt], d),
            }
            for d in found.divergences
        ]  # fmt: skip
        result |= {"matched": found.equal, "mismatches": pairs}
        if pairs:
            result["divergence"] = divergence(
                [len(o.ids) for o in expected],
                {p["prompt"]: p["position"] for p in pairs},
                [p["gap"] for p in pairs if p["gap"] is not None],
            )
    return result


def _gap(url: str, messages: Messages, output: Output, at: Divergence) -> float | None:
    if at.a is None or at.b is None:  # one had ended
        return None
    try:
        return log_prob_gap(url, messages, output.ids[: at.position_tokens], at.a, at.b)
    except KvtopError:  # it explains a difference that is reported anyway
        return None


def _outputs(file: Path, key: str) -> list:
    stored = read_json(file)
    if stored["prompts"] != key:
        raise KvtopError(f"{file} holds other prompts than this probe's; deploy the baseline again")
    return from_json(stored["outputs"])


def verdict(result: dict[str, Any]) -> str:
    """A probe's result in one line."""
    if result["role"] == "exempt":
        return "lossless probe: exempt, acceptance is simulated"
    if not result["prompts"]:
        return "lossless probe: nothing was probed (lossless_prompts: 0), no output was compared"
    where = f"{result['prompts']} prompts, {result['tokens']} tokens, {result['c']} at a time"
    if result["role"] == "reference":
        return f"lossless probe: {where}, stored as the reference"
    if not result["mismatches"]:
        return f"lossless probe: {where}, all equal the baseline's"
    first = result["mismatches"][0]
    text = (
        f"lossless probe: {where}; {len(result['mismatches'])} DIFFER from the baseline's, the "
        f"first at prompt {first['prompt']}, token {first['position']}"
    )
    if not (parted := result.get("divergence")):
        return text
    text += (
        f"; {parted['share']:.0%} of the outputs ({parted['low']:.0%} to {parted['high']:.0%}), "
        f"{parted['per_1000_tokens']:.3g} per 1000 tokens, in the median at token "
        f"{parted['position']['p50']:.0f}"
    )
    if parted["gap"]:
        text += f", where the two tokens are {parted['gap']['p50']:.2g} nats apart"
    return text


def against_itself(result: dict[str, Any], itself: dict[str, Any]) -> str:
    """An arm's differing outputs beside those of the A/A pair, in one line."""
    one, other = ((len(r["mismatches"]), r["prompts"]) for r in (result, itself))
    p = same_rate(one, other)
    rest = "no difference of the rates detected" if p >= 0.05 else "the rates differ"
    return (
        f"{one[0]} of {one[1]} outputs differ, {other[0]} of {other[1]} between the baseline and "
        f"itself (Fisher's exact test p = {p:.2g}): {rest}"
    )

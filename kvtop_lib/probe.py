"""The lossless probe of a deployment: its greedy outputs beside the baseline's, token by token.

The baseline's outputs are stored once, in ``<run>/baseline/deploy/lossless.json``; every drafting
arm answers the same prompts, several at a time so that batches form, and is compared with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop_lib.digest import digest
from kvtop_lib.engine import compare, greedy_outputs
from kvtop_lib.engine.lossless import from_json, to_json
from kvtop_lib.store import read_json, write_json
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace import Trace

CONCURRENCY = 8
FILE = "lossless.json"
Messages = list[dict[str, str]]


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


def probe(url: str, folder: Path, baseline: Path, prompts: list[Messages]) -> dict[str, Any]:
    """Answer `prompts`, keep the outputs, and compare them with the baseline's.

    Parameters
    ----------
    url : a running server.
    folder : where ``lossless.json`` is written.
    baseline : folder of the baseline's deployment; the same folder for the baseline itself.

    Returns
    -------
    dict
        ``role`` ("reference" or "compared"), ``prompts``, ``c``, ``tokens``, ``matched`` (prompts
        with identical outputs; None for the reference) and ``mismatches`` (prompt, position in
        tokens, both token ids).

    Raises
    ------
    KvtopError
        When a request fails, or the baseline's outputs are missing or of other prompts.
    """
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
            {"prompt": d.prompt, "position": d.position_tokens, "baseline": d.a, "arm": d.b}
            for d in found.divergences
        ]
        result |= {"matched": found.equal, "mismatches": pairs}
    return result


def _outputs(file: Path, key: str) -> list:
    stored = read_json(file)
    if stored["prompts"] != key:
        raise KvtopError(f"{file} holds other prompts than this probe's; deploy the baseline again")
    return from_json(stored["outputs"])


def verdict(result: dict[str, Any]) -> str:
    """A probe's result in one line."""
    if not result["prompts"]:
        return "lossless probe: nothing was probed (lossless_prompts: 0), no output was compared"
    where = f"{result['prompts']} prompts, {result['tokens']} tokens, {result['c']} at a time"
    if result["role"] == "reference":
        return f"lossless probe: {where}, stored as the reference"
    if not result["mismatches"]:
        return f"lossless probe: {where}, all equal the baseline's"
    first = result["mismatches"][0]
    return (
        f"lossless probe: {where}; {len(result['mismatches'])} DIFFER from the baseline's, the "
        f"first at prompt {first['prompt']}, token {first['position']}"
    )

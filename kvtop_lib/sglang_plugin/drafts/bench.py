"""Time of the n-gram look-up per iteration: ``python -m kvtop_lib.sglang_plugin.drafts.bench``.

Contexts of 32,768 tokens, in which phrases of a few tokens recur, arrive at once; then every
iteration adds three tokens per request and looks up. The goal is less than 1 ms per iteration.
"""

import array
import random
import time
from types import SimpleNamespace

from .lookup import Lookup
from .suffix import PythonIndex, native

CONTEXT_TOKENS, ITERATIONS, DEPTH = 32_768, 200, 3
REQUESTS = (1, 8, 32)


class Request(SimpleNamespace):
    """What the look-up reads of an engine's request."""

    __hash__ = object.__hash__


def text(rng: random.Random, tokens: int) -> array.array:
    """Recurring phrases of 5 to 40 tokens."""
    phrases = [[rng.randrange(50_000) for _ in range(rng.randrange(5, 41))] for _ in range(300)]
    found: list[int] = []
    while len(found) < tokens:
        found += rng.choice(phrases)
    return array.array("q", found[:tokens])


def iterations(requests: int, kind: type | None) -> tuple[list[float], list[float]]:
    """Seconds per iteration while the prompts are read, and afterwards."""
    rng = random.Random(1)
    batch = [
        Request(
            origin_input_ids_unpadded=text(rng, CONTEXT_TOKENS),
            output_ids=array.array("q"),
            sampling_params=SimpleNamespace(max_new_tokens=3 * ITERATIONS),
        )
        for _ in range(requests)
    ]
    more = text(rng, 3 * ITERATIONS)
    lookup, reading, steady = Lookup(3, kind), [], []
    done = False
    while not done or len(steady) < ITERATIONS:
        started = time.perf_counter()
        found = lookup.propose(batch, DEPTH)
        (steady if done else reading).append(time.perf_counter() - started)
        done = done or any(found[-1:])
        done = done or len(reading) * lookup.tokens_per_iteration >= requests * CONTEXT_TOKENS
        start = 3 * len(steady)
        for request in batch if done else ():
            request.output_ids.extend(more[start : start + 3])
    return reading, steady


def main() -> None:
    """Print the table."""
    print("n-gram look-up, contexts of 32768 tokens; milliseconds per iteration (goal: below 1)")
    print("index   requests  reading p50  reading max  then p50  then max")
    for name, kind in (("C", None), ("Python", PythonIndex)) if native() else (("Python", None),):
        for requests in REQUESTS if name == "C" else REQUESTS[:1]:
            reading, steady = (sorted(x) for x in iterations(requests, kind))
            numbers = reading[len(reading) // 2], reading[-1], steady[len(steady) // 2], steady[-1]
            shown = "  ".join(f"{1e3 * x:9.3f}" for x in numbers)
            print(f"{name:6s}  {requests:8d}  {shown}", flush=True)


if __name__ == "__main__":
    main()

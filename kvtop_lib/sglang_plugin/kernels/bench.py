"""What the kernels cost on the shapes of SmolLM2-135M.

Run as `python -m kvtop_lib.sglang_plugin.kernels.bench`.

Wall time is the best of the repeats, so that other processes disturb it least; CPU time counts
all threads. With several threads on a busy machine only the CPU column means much.
"""

import argparse
import time

import torch

from . import Batch, attention, lib, linear, pack_weight, set_threads

LAYERS, VOCABULARY, HIDDEN, Q, KV, FFN, HEAD_DIM = 30, 49152, 576, 576, 192, 1536, 64
SHAPES = {
    "qkv": (Q + 2 * KV, HIDDEN),
    "o": (HIDDEN, Q),
    "gate_up": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)


def best(work, repeats: int) -> tuple[float, float]:
    """Smallest wall and CPU milliseconds of `work()` over the repeats."""
    walls, cpus = [], []
    for _ in range(repeats + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls[1:]) * 1e3, min(cpus[1:]) * 1e3


def linear_table(threads: list[int], repeats: int) -> None:
    """All linear layers and the head over rows, beside torch's float32 GEMM."""
    shapes = [*SHAPES.values()] * LAYERS + [(VOCABULARY, HIDDEN)]
    weights = [(torch.randn(s) * 0.05).bfloat16() for s in shapes]
    packed = [pack_weight(w) for w in weights]
    parameters = sum(p.n * p.k for p in packed)
    wide = [w.float() for w in weights]
    print("rows  threads   wall ms  ratio   CPU ms  ratio  GFLOP/s (wall)  torch CPU ms")
    for count in threads:
        set_threads(count)
        base = None
        for rows in ROWS:
            x = {k: torch.randn(rows, k) for k in {p.k for p in packed}}
            outs = {p.n: torch.empty(rows, p.n) for p in packed}
            tries = repeats if rows <= 64 else 2
            wall, cpu = best(
                lambda x=x, o=outs: [linear(x[p.k], p, out=o[p.n]) for p in packed], tries
            )
            base = base or (wall, cpu)
            line = (
                f"{rows:4d}  {count:7d}  {wall:8.2f}  {wall / base[0]:5.2f} {cpu:8.2f}  "
                f"{cpu / base[1]:5.2f}  {2e-6 * parameters * rows / wall:14.0f}"
            )
            if count == 1:
                slow = best(
                    lambda x=x: [torch.nn.functional.linear(x[w.shape[1]], w) for w in wide], 2
                )
                line += f"  {slow[1]:12.2f}"
            print(line, flush=True)


def attention_table(repeats: int) -> None:
    """One layer of attention: verify of B requests at width w beside decode of B and B x w."""
    set_threads(1)
    print("\nattention, one layer, one thread, 256 keys: CPU ms")
    print("requests  decode  verify 2  verify 4  decode of 4 x requests")
    for size in (1, 8, 32):
        costs = []
        for requests, width in ((size, 1), (size, 2), (size, 4), (4 * size, 1)):
            table = torch.arange(requests * 256, dtype=torch.int32).view(requests, 256)
            batch = Batch(
                table,
                torch.arange(requests),
                torch.full((requests,), 256),
                torch.full((requests,), width),
            )
            pools = torch.randn(2, requests * 256, KV // HEAD_DIM, HEAD_DIM)
            q = torch.randn(requests * width, Q // HEAD_DIM, HEAD_DIM)
            costs.append(
                best(lambda p=pools, q=q, b=batch: attention(q, *p, b, 0.125), 3 * repeats)[1]
            )
        print(f"{size:8d}  {costs[0]:6.3f}  {costs[1]:8.3f}  {costs[2]:8.3f}  {costs[3]:8.3f}")


def call_table() -> None:
    """Cost of getting into C and back."""
    set_threads(1)
    packed, x, out = pack_weight(torch.ones(16, 2)), torch.ones(1, 2), torch.empty(1, 16)
    spent = best(lambda: [linear(x, packed, out=out) for _ in range(1000)], 5)
    print(f"\none call of linear on 16 x 2 weights: {spent[1]:.2f} us of CPU")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="kernels.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, lib.default_threads()])
    args = parser.parse_args()
    torch.set_num_threads(1)
    library = lib.native()
    print("kernels:", library.kvtop_isa().decode() if library else "torch fallback")
    linear_table(sorted(set(args.threads)), args.repeats)
    attention_table(args.repeats)
    call_table()


if __name__ == "__main__":
    main()

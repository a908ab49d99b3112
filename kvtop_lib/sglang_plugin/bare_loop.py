"""SmolLM2 on the kernels without SGLang: batch generation with states, and a bench.

    python -m kvtop_lib.sglang_plugin.bare_loop generate --model DIR --prompts FILE \\
        --max-new-tokens N --batch 64 --out DIR
    python -m kvtop_lib.sglang_plugin.bare_loop bench [--model DIR]
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from .bare_batch import Generator, Sequence
from .bare_model import BareLlama
from .kernels import Batch, threads

ROWS = (1, 2, 4, 8, 16, 32, 64)
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "eos_token_id": 2,
}


def write_shard(path: Path, done: list[Sequence]) -> None:
    """Write finished sequences as one safetensors file, whole or not at all.

    Tensors, n sequences: `tokens` int32 (prompt then output, concatenated) with
    `token_offsets` int64 [n + 1]; `prompt_tokens` int32 [n]; `stopped` uint8 [n]; `states`
    [rows, hidden], concatenated, with `state_offsets` int64 [n + 1]; `first_position` int32 [n]:
    row j of a sequence is the final-normed hidden state at position `first_position + j`.
    Metadata `ids`: JSON list of the prompts' ids.
    """

    def offsets(counts):
        return torch.tensor([0, *counts]).cumsum(0)

    tensors = {
        "tokens": torch.tensor([t for s in done for t in s.prompt + s.output], dtype=torch.int32),
        "token_offsets": offsets([s.length for s in done]),
        "prompt_tokens": torch.tensor([len(s.prompt) for s in done], dtype=torch.int32),
        "stopped": torch.tensor([s.stopped for s in done], dtype=torch.uint8),
        "states": torch.stack([row for s in done for row in s.states]),
        "state_offsets": offsets([len(s.states) for s in done]),
        "first_position": torch.tensor([s.first_position for s in done], dtype=torch.int32),
    }
    part = path.with_suffix(".partial")
    save_file(tensors, part, metadata={"ids": json.dumps([s.name for s in done])})
    os.replace(part, path)


def read_prompts(path: Path) -> list[Sequence]:
    """Sequences of a JSONL file with `id` and `ids` (token ids) on each line."""
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            item = json.loads(line)
            prompts.append(Sequence(str(item["id"]), [int(t) for t in item["ids"]]))
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}:{number}: a line is id and ids (tokens): {error}") from error
        if not prompts[-1].prompt:
            raise SystemExit(f"{path}:{number}: the prompt has no tokens")
    return prompts


def generate(args: argparse.Namespace) -> None:
    """Generate for all prompts whose shard is not there yet."""
    prompts = read_prompts(args.prompts)
    args.out.mkdir(parents=True, exist_ok=True)
    shards = {
        f"shard-{i // args.shard:05d}.safetensors": prompts[i : i + args.shard]
        for i in range(0, len(prompts), args.shard)
    }
    todo = {name: part for name, part in shards.items() if not (args.out / name).exists()}
    print(f"{len(prompts)} prompts, {len(shards)} shards, {len(todo)} to do", flush=True)
    model = BareLlama.load(args.model, args.pool_tokens)
    eos = model.config.get("eos_token_id")
    stop = {t for t in (eos if isinstance(eos, list) else [eos]) if t is not None}
    generator = Generator(
        model,
        args.batch,
        args.max_new_tokens,
        tail_tokens=args.tail_tokens,
        stop_ids=stop | set(args.stop_id),
        keep_states=not args.no_states,
        state_dtype=getattr(torch, args.state_dtype),
    )
    home = {id(s): name for name, part in todo.items() for s in part}
    left = {name: len(part) for name, part in todo.items()}
    total, done, tokens, begun, said = len(home), 0, 0, time.monotonic(), 0.0
    for s in generator.run(s for part in todo.values() for s in part):
        done, tokens = done + 1, tokens + len(s.output)
        name = home[id(s)]
        left[name] -= 1
        if not left[name]:
            write_shard(args.out / name, todo.pop(name))
        elapsed = time.monotonic() - begun
        if elapsed - said > 10 or done == total:
            said = elapsed
            print(
                f"{done}/{total} prompts, {tokens} output tokens, {tokens / elapsed:.0f} tok/s, "
                f"{(total - done) * elapsed / done / 60:.1f} min left",
                flush=True,
            )


def step_seconds(
    model: BareLlama, requests: int, width: int, context: int, repeats: int
) -> tuple[float, float]:
    """Median wall and CPU time of one forward (all layers, head, argmax).

    Every request has `context` keys of which the last `width` tokens are new: 1 is decode, more
    is verify. CPU time counts all threads of the process; far below wall time times threads, the
    machine was busy with something else.
    """
    table = torch.randperm(model.pool_tokens)[: requests * context].view(requests, context).int()
    batch = Batch(
        table,
        torch.arange(requests),
        torch.full((requests,), context),
        torch.full((requests,), width),
    )
    ids = torch.arange(requests * width) + 10
    positions = torch.arange(context - width, context).repeat(requests)
    slots = table[:, -width:].flatten().long()
    times = []
    for _ in range(repeats + 1):
        begun, cpu = time.perf_counter(), time.process_time()
        model.next_tokens(model.forward(ids, positions, slots, batch))
        times.append((time.perf_counter() - begun, time.process_time() - cpu))
    wall, cpu = zip(*times[1:], strict=True)
    return statistics.median(wall), statistics.median(cpu)


def bench(args: argparse.Namespace) -> None:
    """Print iteration times of decode over rows and of verify over requests and width."""
    pool = max(ROWS) * args.context
    model = BareLlama.load(args.model, pool) if args.model else BareLlama.random(SMOLLM2, pool)
    shapes = [(n, 1) for n in ROWS] + [
        (n, w) for n in (1, 8, 32) for w in (2, 4) if n * w <= max(ROWS)
    ]
    if not args.json:
        print(f"{threads()} threads, {args.context} keys per request")
        print("requests  width  ms/iteration  ratio to decode of as many rows  CPU ms  ratio")
    decode = {}
    for requests, width in shapes:
        wall, cpu = step_seconds(model, requests, width, args.context, args.repeats)
        rows = requests * width
        base = decode.setdefault(rows, (wall, cpu))
        if args.json:
            print(
                json.dumps(
                    {
                        "requests": requests,
                        "width": width,
                        "wall_s": wall,
                        "cpu_s": cpu,
                        "context_tokens": args.context,
                        "threads": threads(),
                    }
                )
            )
        else:
            print(
                f"{requests:8d}  {width:5d}  {wall * 1e3:12.2f}  {wall / base[0]:31.2f}  "
                f"{cpu * 1e3:6.1f}  {cpu / base[1]:5.2f}",
                flush=True,
            )


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="bare_loop", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("generate", help=generate.__doc__)
    one.set_defaults(run=generate)
    one.add_argument("--model", type=Path, required=True)
    one.add_argument("--prompts", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--max-new-tokens", type=int, required=True)
    one.add_argument("--batch", type=int, default=64)
    one.add_argument("--pool-tokens", type=int, default=49152, help="KV slots for all sequences")
    one.add_argument("--tail-tokens", type=int, default=64, help="prompt positions with states")
    one.add_argument("--shard", type=int, default=256, help="prompts per shard")
    one.add_argument("--state-dtype", choices=["bfloat16", "float16"], default="bfloat16")
    one.add_argument("--stop-id", type=int, action="append", default=[])
    one.add_argument("--no-states", action="store_true")
    two = commands.add_parser("bench", help=bench.__doc__)
    two.set_defaults(run=bench)
    two.add_argument("--model", type=Path)
    two.add_argument("--context", type=int, default=256)
    two.add_argument("--repeats", type=int, default=9)
    two.add_argument("--json", action="store_true", help="one JSON object per line")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    args.run(args)


if __name__ == "__main__":
    sys.exit(main())

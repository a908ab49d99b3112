"""The clients that are measured: how each is asked for one wave of streams of one length.

All get the same: ``streams`` requests at once, each answered with ``chunks`` chunks, no warm-up
requests, a local tokenizer, prompts of 32 tokens, no tokenizing of answers where it can be
turned off, and their default number of processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvtop_lib.bench import peer_env, peer_records
from kvtop_lib.bench.driver import Seen
from kvtop_lib.paths import cache_dir

MODEL = "null-server"  # the name it serves; GuideLLM would read a bare "null" as none
PROMPT_TOKENS = 32
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True)
class Wave:
    """One run of a client: so many streams at once, of so many chunks, records into a folder."""

    url: str
    streams: int
    chunks: int
    folder: Path


@dataclass(frozen=True)
class Peer:
    """A client and how its records are read.

    Attributes
    ----------
    id, title
        Name for files and options; name in the table.
    command
        The command of a wave; it may make the peer's environment first.
    records
        What the client itself recorded of a wave, in the log's terms.
    relative
        Its times count from an unknown start of each request.
    what
        Which chunks its records tell of.
    offline
        It is told to stay offline; AIPerf then takes a folder's name for one of a model hub.
    """

    id: str
    title: str
    command: Callable[[Wave], list[str]]
    records: Callable[[Path], list[Seen]]
    relative: bool = False
    what: str = "every chunk"
    offline: bool = True

    def environment(self) -> dict[str, str]:
        """Variables of its process: nothing is downloaded while it is measured."""
        return os.environ | (OFFLINE if self.offline else {}) | {"PYTHONUNBUFFERED": "1"}


def tokenizer() -> str:
    """Folder of the tokenizer that all use."""
    return str((cache_dir() / "smollm2").resolve())


def _driver(module: str) -> Callable[[Wave], list[str]]:
    def command(wave: Wave) -> list[str]:
        asked = ["--url", wave.url, "--streams", str(wave.streams), "--chunks", str(wave.chunks)]
        out = str(wave.folder / "records.json")
        return [sys.executable, "-m", f"kvtop_lib.bench.{module}", *asked, "--out", out]

    return command


def _sglang(*more: str) -> Callable[[Wave], list[str]]:
    def command(wave: Wave) -> list[str]:
        options = {
            "--backend": "sglang-oai-chat",
            "--base-url": wave.url,
            "--model": MODEL,
            "--tokenizer": tokenizer(),
            "--dataset-name": "random-ids",
            "--random-input-len": PROMPT_TOKENS,
            "--random-output-len": wave.chunks,
            "--random-range-ratio": 1.0,
            "--num-prompts": wave.streams,
            "--max-concurrency": wave.streams,
            "--warmup-requests": 0,
            "--output-file": wave.folder / "records.jsonl",
        }
        flags = ["--output-details", "--disable-tqdm", *more]
        program = str(peer_env.ensure("sglang") / "python")
        return [program, "-m", "sglang.bench_serving", *_flat(options), *flags]

    return command


def _aiperf(wave: Wave) -> list[str]:
    options = {
        "-m": MODEL,
        "--tokenizer": tokenizer(),
        "--endpoint-type": "chat",
        "--url": wave.url,
        "--concurrency": wave.streams,
        "--request-count": wave.streams,
        "--synthetic-input-tokens-mean": PROMPT_TOKENS,
        "--synthetic-input-tokens-stddev": 0,
        "--output-tokens-mean": wave.chunks,
        "--output-tokens-stddev": 0,
        "--artifact-dir": wave.folder / "artifacts",
        "--ui": "none",
        "--random-seed": 1,
    }
    flags = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
    return [str(peer_env.ensure("aiperf") / "aiperf"), "profile", *_flat(options), *flags]


def _guidellm(wave: Wave) -> list[str]:
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={wave.chunks}"
    options = {
        "--backend": f"kind=openai_http,target={wave.url},model={MODEL},http2=false",
        "--profile": f"kind=concurrent,streams={wave.streams}",
        "--constraint": f"kind=max_requests,count={wave.streams}",
        "--tokenizer": f"kind=huggingface_auto,model={tokenizer()}",
        "--data": data,
        "--output": f"kind=json,path={wave.folder / 'records.json'}",
    }
    program = str(peer_env.ensure("guidellm") / "guidellm")
    return [program, "run", *_flat(options), "--disable-console-interactive"]


def _flat(options: dict) -> list[str]:
    return [str(part) for pair in options.items() for part in pair]


def peers() -> dict[str, Peer]:
    """All clients by id, in the order of the table."""
    rust = _sglang("--rust-client")
    all_of_them = (
        Peer("floor", "bare socket reader", _driver("floor"), peer_records.driver),
        Peer("kvtop", "KVTop", _driver("ours"), peer_records.driver),
        Peer("sglang", "sglang.bench_serving", _sglang(), peer_records.sglang, relative=True),
        Peer(
            "sglang-rust", "sglang.bench_serving --rust-client", rust, peer_records.sglang,
            relative=True,
        ),
        Peer("aiperf", "AIPerf", _aiperf, peer_records.aiperf, offline=False),
        Peer(
            "guidellm", "GuideLLM", _guidellm, peer_records.guidellm,
            what="first and last chunk of a stream",
        ),
    )  # fmt: skip
    return {p.id: p for p in all_of_them}

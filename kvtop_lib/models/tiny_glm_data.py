"""Corpus and tokenizer of tiny-glm: source and docs of pinned packages, partly dressed as chats."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kvtop_lib.terms import KvtopError

PACKAGES = (  # permissive licences (BSD, MIT, Apache-2.0), all pinned in the CPU lock file
    "aiohttp", "altair", "click", "fastapi", "httpx", "jinja2", "jupyter_client",
    "jupyter_server", "nbconvert", "nbformat", "numpy", "pandas", "papermill", "pydantic",
    "requests", "rich", "sglang", "starlette", "traitlets", "transformers", "typer", "uvicorn",
)  # fmt: skip
PACKAGE_BYTES = 450_000  # at most this much source of one package
FILE_BYTES = (1_000, 60_000)
CHAT_SHARE = 0.35  # of the files
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES))
CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SYSTEM = "You are a coding assistant. Answer with code or a short sentence."


@dataclass(frozen=True)
class Document:
    """One file of a package (`name` is its path in site-packages), or chats made of it."""

    name: str
    text: str
    chat: bool

    @property
    def held_out(self) -> bool:
        """Whole files are held out, about one in twenty, chosen by the hash of the name."""
        return hashlib.sha256(self.name.encode()).digest()[0] < 13


def package_files(package: str, seed: int) -> list[tuple[str, str]]:
    """(path, text) of a seeded sample of a package's Python files, then its description."""
    try:
        dist = metadata.distribution(package)
    except metadata.PackageNotFoundError as error:
        raise KvtopError(
            f"The corpus of tiny-glm needs the package {package}: install the CPU lock file."
        ) from error
    names = sorted(str(f) for f in dist.files or () if f.suffix == ".py" and "tests" not in f.parts)
    random.Random(f"{seed}:{package}").shuffle(names)
    files, total = [], 0
    for name in names:
        path = Path(str(dist.locate_file(name)))
        if not path.is_file() or not FILE_BYTES[0] <= path.stat().st_size <= FILE_BYTES[1]:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        total += len(text)
        if total > PACKAGE_BYTES:
            break
        files.append((name, text))
    return [*files, (f"{package}/DESCRIPTION", str(dist.metadata.get_payload()))]


def render_chat(messages: list[tuple[str, str]]) -> str:
    """The chat template, for (role, content) pairs."""
    return BEGIN + "".join(f"<|{role}|>\n{content}{END}" for role, content in messages)


def chats_of(name: str, text: str, rng: random.Random) -> str:
    """Short chats around excerpts of one file: continue it, quote it, read it with a tool."""
    lines, chats, at = text.split("\n"), [], 0
    while at + 12 < len(lines):
        size, answer = rng.randint(6, 24), rng.randint(2, 10)
        excerpt = "\n".join(lines[at : at + size])
        follow = "\n".join(lines[at + size : at + size + answer])
        first = rng.randrange(max(1, size - answer))
        quote = "\n".join(lines[at + first : at + first + answer])
        ask, read = f"What is in {name}?", f"I read {name}."
        chats.append(
            [("system", SYSTEM)] * rng.randrange(2)
            + rng.choice(
                (
                    [("user", f"Continue {name}:\n{excerpt}"), ("assistant", follow)],
                    [
                        ("user", ask),
                        ("assistant", read),
                        ("tool", excerpt),
                        ("assistant", f"These lines matter:\n{quote}"),
                    ],
                    [
                        ("user", f"Show lines {first} to {first + answer} of:\n{excerpt}"),
                        ("assistant", quote),
                    ],
                )
            )  # fmt: skip
        )
        at += size + answer
    return "".join(map(render_chat, chats))


def build_corpus(seed: int = 0, packages: tuple[str, ...] = PACKAGES) -> list[Document]:
    """All documents, shuffled with the seed; the same packages give the same list."""
    rng, documents = random.Random(seed), []
    for package in packages:
        for name, text in package_files(package, seed):
            chat = rng.random() < CHAT_SHARE and name.endswith(".py")
            body = chats_of(name, text, rng) if chat else f"{BEGIN}{text}{END}"
            documents.append(Document(name, body, chat))
    rng.shuffle(documents)
    return documents


def corpus_sha256(documents: list[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.name}\0{document.text}\0".encode())
    return digest.hexdigest()


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """Byte-level BPE on the training documents; no text is unknown to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents if not d.held_out), trainer)
    return tokenizer


def encode(documents: list[Document], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (uint16) of the training and of the held-out documents, each one long stream."""
    streams: tuple[list[int], list[int]] = ([], [])
    for document in documents:
        streams[document.held_out].extend(tokenizer.encode(document.text).ids)
    return np.array(streams[0], np.uint16), np.array(streams[1], np.uint16)


def versions() -> dict[str, str]:
    """Installed version of every package of the corpus."""
    return {package: metadata.version(package) for package in PACKAGES}

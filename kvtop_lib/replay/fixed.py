"""Sessions of one fixed shape: N tokens in, M tokens out, no two prompts alike, of real text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvtop_lib.params.workload import FixedShape
from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session, Trace, Turn
from kvtop_lib.trace.pieces import PieceBook
from kvtop_lib.trace.text import BlockText, load_tokenizer

TRIES = 4  # corrections of a prompt whose ends merge with the template's


def fixed_trace(shape: FixedShape, tokenizer: Path | str, seed: int) -> Trace:
    """A trace of single requests of one size.

    Parameters
    ----------
    shape
        Tokens in (as the server counts them: with the chat template that lies beside the
        tokenizer) and out, and the number of sessions.
    tokenizer
        The served model's: a folder, or a ``tokenizer.json``.
    seed
        Decides every prompt.

    Returns
    -------
    Trace
        ``recorded_with["fixed"]`` holds shape, seed, the tokens of the template (None where no
        template was found; the server's count is higher then), and hashes of tokenizer and text.

    Raises
    ------
    KvtopError
        When there is no tokenizer, or no such prompts can be made with it.
    """
    reader, template = load_tokenizer(tokenizer), _template(Path(tokenizer))
    book = PieceBook.of(reader)
    maker = BlockText(book)

    def count(content: str) -> int:
        return len(reader.encode(template(content), add_special_tokens=False).ids)

    own = count("") if template("") else None
    free = shape.input_tokens - (own or 0)
    if free < 1:
        raise KvtopError(
            f"input_tokens is {shape.input_tokens} and the chat template alone takes {own}; ask "
            "for more"
        )
    texts: dict[str, None] = {}
    for n in range(shape.sessions):
        texts[_exact(maker, count, (seed, n), free, shape.input_tokens)] = None
    if len(texts) < shape.sessions:
        raise KvtopError(
            f"only {len(texts)} of {shape.sessions} prompts of {free} tokens of text differ; ask "
            "for more input_tokens or fewer sessions"
        )
    said = {
        **shape.model_dump(),
        "seed": seed,
        "template_tokens": own,
        "tokenizer_sha256": hashlib.sha256(reader.to_str().encode()).hexdigest(),
        "corpus_sha256": book.sha256,
    }
    sessions = tuple(
        Session(f"fixed-{n:06}", "fixed", (_turn(text, shape),)) for n, text in enumerate(texts)
    )
    name = f"fixed-{shape.input_tokens}-{shape.output_tokens}"
    return Trace(name, {"fixed": said}, sessions)


def _turn(text: str, shape: FixedShape) -> Turn:
    messages = ({"role": "user", "content": text},)
    return Turn(messages, None, shape.output_tokens, "length", shape.input_tokens)


def _exact(maker: BlockText, count: Callable, identity: tuple, free: int, tokens: int) -> str:
    length = free
    for _ in range(TRIES):
        text = maker.make(("fixed", *identity), length).lstrip()
        if (off := tokens - count(text)) == 0:
            return text
        length = max(1, length + off)
    raise KvtopError(
        f"no text of {free} tokens was found that gives a prompt of exactly {tokens} with this "
        "chat template; try another input_tokens"
    )


def _template(tokenizer: Path) -> Callable[[str], str]:
    """Renders a user's message as the server does; the message alone where there is no template."""
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    file = folder / "tokenizer_config.json"
    config, origin = _config(file) if file.is_file() else {}, file
    source = config.get("chat_template")
    if (file := folder / "chat_template.jinja").is_file():
        source, origin = _text(file), file
    if not isinstance(source, str):
        return lambda content: content
    special = _special(folder / "tokenizer_config.json", config)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse

    def render(content: str) -> str:
        messages = [{"role": "user", "content": content}]
        try:
            template = environment.from_string(source)
            text = template.render(messages=messages, add_generation_prompt=True, **special)
            text.encode()  # fails at half a character, which no tokenizer takes
        except Exception as e:  # a template computes, and may fail like any program
            said = " ".join(str(e).split())
            raise KvtopError(
                f"the chat template in {origin} cannot be rendered ({said}); mend it"
            ) from e
        return text

    return render


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise KvtopError(f"{file} cannot be read as text ({e}); mend it") from None


def _config(file: Path) -> dict[str, Any]:
    text = _text(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise KvtopError(f"{file} is not JSON ({e}); mend it") from None
    if not isinstance(found, dict):
        raise KvtopError(f"{file} must hold a JSON object, not a {type(found).__name__}; mend it")
    return found


def _special(file: Path, config: dict[str, Any]) -> dict[str, str]:
    """The special tokens, which a template may name."""
    special = {}
    for key, value in config.items():
        if key.endswith("_token") and isinstance(value, str | dict):
            text = value.get("content") if isinstance(value, dict) else value
            if not isinstance(text, str):
                raise KvtopError(f'{key} in {file} has no text "content"; add it')
            special[key] = text
    return special

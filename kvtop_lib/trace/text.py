"""Text of token blocks: real text, of an exact number of tokens, equal for equal identities.

Text is made of *pieces* of a corpus: they begin with a blank and a letter behind a character that
is not blank, which is where the pre-tokenizers in use always break, so that the tokens of a text
are those of its pieces one after the other, whatever stands before and behind. `PieceBook` checks
that with the tokenizer at hand. A block opens with two pieces of one token that its identity
chooses, so that two different blocks behind the same prompt part at once; then the corpus runs on
from a place that the identity chooses, and pieces of one token fill up what is left.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kvtop_lib.terms import KvtopError
from kvtop_lib.trace.model import Session, Trace, Turn
from kvtop_lib.trace.pieces import PieceBook

HEAD = 2  # pieces that tell blocks apart
PATIENCE = 16  # pieces of the corpus that are passed over as too long before words fill up
CACHED_CHARS = 64_000_000  # of blocks, of which most are asked for again soon


def load_tokenizer(tokenizer: Any) -> Tokenizer:
    """A tokenizer of a ``tokenizer.json`` or its folder; a ``Tokenizer`` is given back.

    Raises
    ------
    KvtopError
        There is no such file, or it is no tokenizer.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise KvtopError(f"There is no tokenizer {path}; name a tokenizer.json or its folder.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise KvtopError(f"{path} is no tokenizer: {' '.join(str(error).split())}.") from None


@dataclass
class BlockText:
    """Makes text by identities; the same for the same tokenizer, corpus and identities."""

    book: PieceBook
    name: str = ""  # of the trace, so that unique texts of two traces differ
    _made: OrderedDict[tuple, str] = field(default_factory=OrderedDict, repr=False)
    _chars: int = field(default=0, repr=False)

    def __reduce__(self) -> tuple:
        # without what is made, to which another thread may be adding
        return BlockText, (self.book, self.name)

    def prompt(self, session: Session, k: int) -> str:
        """Text of the whole prompt of turn ``k``: its blocks, then what is unique to it."""
        turn = session.turns[k]
        if turn.blocks is None:
            raise KvtopError(f"turn {k} of session {session.id} tells no token blocks.")
        size, scope = turn.blocks.size, turn.blocks.scope
        parts = [
            self.block((scope, id, size), n) for id, n in turn.blocks.filled(turn.prompt_tokens)
        ]
        rest = turn.blocks.unique_tokens(turn.prompt_tokens)
        return "".join([*parts, self.make((self.name, session.id, k, "prompt"), rest)])

    def answer(self, session: Session, k: int) -> str:
        """Text of as many tokens as the answer of turn ``k`` had."""
        tokens = session.turns[k].output_tokens
        return self.make((self.name, session.id, k, "answer"), tokens).lstrip()

    def block(self, identity: tuple, tokens: int) -> str:
        """As `make`, kept for the next prompt that has this block."""
        key = (*identity, tokens)
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        text = self._made[key] = self.make(identity, tokens)
        self._chars += len(text)
        while self._chars > CACHED_CHARS:
            self._chars -= len(self._made.popitem(last=False)[1])
        return text

    def make(self, identity: tuple, tokens: int) -> str:
        """Text of exactly ``tokens`` tokens that ``identity`` decides."""
        book, left = self.book, tokens
        seed = int.from_bytes(hashlib.sha256(repr(identity).encode()).digest()[:24], "big")
        out: list[str] = []
        for _ in range(min(HEAD, left)):
            seed, i = divmod(seed, len(book.single))
            out.append(book.single[i])
            left -= 1
        at = seed % len(book.stream)
        passed = 0
        while left and passed < PATIENCE:
            fits = book.tokens[at] <= left
            passed = 0 if fits else passed + 1
            if fits:
                out.append(book.stream[at])
                left -= book.tokens[at]
            at = (at + 1) % len(book.stream)
        for i in range(left):
            out.append(book.single[(at * (i + 1)) % len(book.single)])
        return "".join(out)


def with_text(trace: Trace, tokenizer: Any) -> Trace:
    """``trace`` with text for its identities, and with counted where it has estimated tokens.

    The header says which tokenizer and corpus the text is made with. A trace with text of its own
    and counted tokens is given back as it is.
    """
    from kvtop_lib.trace.readers.formats import ESTIMATED

    estimated = trace.recorded_with.get("tokens") == ESTIMATED
    if not (trace.needs_text or estimated):
        return trace
    reader = load_tokenizer(tokenizer)
    digest = hashlib.sha256(reader.to_str().encode()).hexdigest()
    said: dict[str, Any] = {**trace.recorded_with}
    sessions = trace.sessions
    if estimated:
        sessions = tuple(_counted(s, reader) for s in sessions)
        said["tokens"] = {"counted_with_tokenizer_sha256": digest}
    if trace.needs_text:
        book = PieceBook.of(reader)
        maker = BlockText(book, trace.name)
        sessions = tuple(replace(s, text=maker) for s in sessions)
        said["text"] = {"tokenizer_sha256": digest, "corpus_sha256": book.sha256}
    return replace(trace, sessions=sessions, recorded_with=said)


def _counted(session: Session, tokenizer: Tokenizer) -> Session:
    """A session whose tokens of text are those of the tokenizer, with 5 a message for a template.

    Answers without text and prompts of blocks keep their recorded lengths.
    """
    texts = [m["content"] for t in session.turns for m in t.messages]
    texts += [t.output for t in session.turns if t.output is not None]
    coded = tokenizer.encode_batch(texts, add_special_tokens=False)
    lengths = {text: len(found.ids) for text, found in zip(texts, coded, strict=True)}
    turns: list[Turn] = []
    tokens = 0
    for turn in session.turns:
        new = sum(5 + lengths[m["content"]] for m in turn.messages)
        output = turn.output_tokens if turn.output is None else max(1, lengths[turn.output])
        tokens = new + (0 if turn.whole else tokens)
        prompt = tokens if turn.blocks is None else turn.prompt_tokens
        turns.append(replace(turn, prompt_tokens=max(1, prompt), output_tokens=output))
        tokens = prompt + output + 5
    return replace(session, turns=tuple(turns))

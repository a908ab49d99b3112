"""The trunk's chat format (ChatML) as token ids, turn by turn."""

from __future__ import annotations

from pathlib import Path

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Chat:
    """Tokens of the turns of a session; joined with the answers they equal the chat template's.

    Parameters
    ----------
    folder : Path
        Checkpoint with `tokenizer.json`.
    """

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.end = self.tokenizer.token_to_id("<|im_end|>")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens are recognised, none are added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def opening(self, messages) -> list[int]:
        """Prompt of the first turn."""
        if messages[0]["role"] != "system":
            messages = ({"role": "system", "content": DEFAULT_SYSTEM}, *messages)
        return self.encode(self._render(messages))

    def later(self, messages, output: list[int]) -> list[int]:
        """What follows `output`, which ends with the end token unless it was cut short."""
        closing = "\n" if output and output[-1] == self.end else "<|im_end|>\n"
        return self.encode(closing + self._render(messages))

    @staticmethod
    def _render(messages) -> str:
        said = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return "".join(said) + "<|im_start|>assistant\n"

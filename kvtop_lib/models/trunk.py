"""The trunk as a batch generator that keeps its hidden states: the source of training data.

Linear layers run in bf16 where that is faster on this CPU, in float32 otherwise; the residual
stream, norms and softmax are float32 everywhere, keys and values are kept as bf16.
"""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from kvtop_lib.models.decode_attention import decode_attention

CANDIDATES = 8  # tokens whose logits are recomputed in float32 before the argmax is taken


@cache
def linear_dtype() -> torch.dtype:
    """bf16 when this CPU has bf16 dot products and multiplies faster with them, else float32.

    The flag alone does not tell: there are machines with AVX512-BF16 whose bf16 products take
    longer than float32 ones.
    """
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return torch.float32
    return min((torch.bfloat16, torch.float32), key=_product_s)


def _product_s(dtype: torch.dtype) -> float:
    """Shortest of some times of a product of a layer's size, in seconds."""
    x, weight = torch.ones(64, 576, dtype=dtype), torch.ones(3072, 576, dtype=dtype)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        F.linear(x, weight)
        times.append(time.perf_counter() - began)
    return min(times)


def rotary_tables(positions: int, dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (positions, dim / 2), of neox-style RoPE."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x`, shape (..., tokens, heads, dim), by tables of shape (..., tokens, dim / 2)."""
    first, second = x.chunk(2, -1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Trunk:
    """A Llama checkpoint with `slots` sequences of at most `positions` tokens in its KV cache.

    Parameters
    ----------
    folder : Path
        Hugging Face checkpoint (bf16 safetensors) without biases, tied embedding.
    dtype : torch.dtype, optional
        Of the linear layers; default `linear_dtype()`.
    """

    def __init__(self, folder: Path, slots: int, positions: int, dtype=None):
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.dtype = dtype or linear_dtype()
        self.eps, self.layers = config["rms_norm_eps"], config["num_hidden_layers"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["head_dim"]
        base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.cos, self.sin = rotary_tables(positions, self.dim, base)
        weights = load_file(Path(folder) / "model.safetensors")
        self.embedding = weights["model.embed_tokens.weight"].float()
        self.head = weights["model.embed_tokens.weight"].to(self.dtype)
        self.norm = weights["model.norm.weight"].float()
        self.blocks = [self._block(weights, f"model.layers.{i}.") for i in range(self.layers)]
        shape = (self.layers, slots, self.kv_heads, positions, self.dim)
        self.keys = torch.zeros(shape, dtype=torch.bfloat16)
        self.values = torch.zeros(shape, dtype=torch.bfloat16)
        self._key_bits = self.keys.view(torch.int16).numpy().view(np.uint16)
        self._value_bits = self.values.view(torch.int16).numpy().view(np.uint16)

    def _block(self, weights, prefix) -> dict[str, torch.Tensor]:
        def get(*names):
            return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

        return {
            "norm1": get("input_layernorm").float(),
            "norm2": get("post_attention_layernorm").float(),
            "qkv": get(*(f"self_attn.{n}_proj" for n in "qkv")).to(self.dtype),
            "o": get("self_attn.o_proj").to(self.dtype),
            "gate_up": get("mlp.gate_proj", "mlp.up_proj").to(self.dtype),
            "down": get("mlp.down_proj").to(self.dtype),
        }

    def prefill(self, slot: int, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Append `tokens` (int64, (n,)) to `slot` at `start`; hidden states (n, hidden) float32."""
        end = start + len(tokens)
        mask = torch.arange(end) <= torch.arange(start, end)[:, None]

        def attend(layer, q, k, v):
            self.keys[layer, slot, :, start:end] = k.transpose(0, 1)
            self.values[layer, slot, :, start:end] = v.transpose(0, 1)
            key = self.keys[layer, slot, :, :end].to(self.dtype)
            value = self.values[layer, slot, :, :end].to(self.dtype)
            groups = self.heads // self.kv_heads
            key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
            q = q.transpose(0, 1).to(self.dtype)
            out = F.scaled_dot_product_attention(q[None], key[None], value[None], attn_mask=mask)
            return out[0].transpose(0, 1).float()

        return self._forward(tokens, torch.arange(start, end), attend)

    def decode(self, slots: torch.Tensor, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Append one token per row at `at[row]` of `slots[row]`; hidden states (rows, hidden)."""
        slot_ids, lengths = slots.numpy(), at.numpy() + 1

        def attend(layer, q, k, v):
            self.keys[layer, slots, :, at] = k.bfloat16()
            self.values[layer, slots, :, at] = v.bfloat16()
            out = torch.empty_like(q)
            keys, values = self._key_bits[layer], self._value_bits[layer]
            query = (q * self.dim**-0.5).numpy()
            decode_attention(query, keys, values, slot_ids, lengths, out.numpy())
            return out

        return self._forward(tokens, at, attend)

    @torch.inference_mode()
    def _forward(self, tokens, positions, attend) -> torch.Tensor:
        x = self.embedding[tokens]
        cos, sin = self.cos[positions], self.sin[positions]
        split = (self.heads, self.kv_heads, self.kv_heads)
        for layer, block in enumerate(self.blocks):
            heads = self._linear(self._rms(x, block["norm1"]), block["qkv"])
            q, k, v = heads.view(len(tokens), -1, self.dim).split(split, 1)
            out = attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v)
            x = x + self._linear(out.reshape(len(tokens), -1), block["o"])
            gate, up = self._linear(self._rms(x, block["norm2"]), block["gate_up"]).chunk(2, -1)
            x = x + self._linear(F.silu(gate) * up, block["down"])
        return self._rms(x, self.norm)

    def _linear(self, x, weight):
        return F.linear(x.to(self.dtype), weight).float()

    def _rms(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.eps)

    @torch.inference_mode()
    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """Greedy next tokens (rows,) of hidden states (rows, hidden), decided in float32."""
        coarse = F.linear(hidden.to(self.dtype), self.head)
        top = coarse.topk(CANDIDATES, dim=-1).indices
        exact = torch.einsum("rh,rch->rc", hidden, self.embedding[top])
        return top.gather(-1, exact.argmax(-1, keepdim=True))[:, 0]

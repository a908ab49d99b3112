"""Weights and KV pools of one decoder layer of a Llama stack."""

import dataclasses

import torch

from .lib import CLayer
from .linear import Packed


@dataclasses.dataclass(frozen=True)
class LlamaLayer:
    """Weights and KV pools of one decoder layer.

    Attributes
    ----------
    input_norm, post_norm
        float32 [hidden]; `input_norm` is None in a layer without one (EAGLE draft).
    qkv, o, gate_up, down
        `Packed`; q, k and v, and gate and up, stacked along the outputs.
    k_pool, v_pool
        float32 [slots, kv_heads, head_dim].
    biases
        float32 vectors by the names "qkv", "o", "gate_up", "down".
    """

    input_norm: torch.Tensor | None
    qkv: Packed
    o: Packed
    post_norm: torch.Tensor
    gate_up: Packed
    down: Packed
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    biases: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def struct(self) -> CLayer:
        """The C view; it borrows all tensors of this layer."""
        parts = {
            name: getattr(self, name).struct(self.biases.get(name))
            for name in ("qkv", "o", "gate_up", "down")
        }
        norm = None if self.input_norm is None else self.input_norm.data_ptr()
        return CLayer(
            norm, self.post_norm.data_ptr(), self.k_pool.data_ptr(), self.v_pool.data_ptr(), **parts
        )

    def check(
        self, i: int, q_heads: int, kv_heads: int, head_dim: int, hidden: int, ffn: int
    ) -> None:
        """Refuse a layer ``i`` whose tensors do not fit the sizes of its stack.

        Raises
        ------
        ValueError
            Names the layer, the tensor, and what it must be.
        """
        q, kv = q_heads * head_dim, kv_heads * head_dim
        shapes = {
            "qkv": (q + 2 * kv, hidden),
            "o": (hidden, q),
            "gate_up": (2 * ffn, hidden),
            "down": (hidden, ffn),
        }
        for name, shape in shapes.items():
            packed = getattr(self, name)
            if (packed.n, packed.k) != shape:
                raise ValueError(f"layer {i}: {name} is {packed.n} x {packed.k}, not {shape}")
            bias = self.biases.get(name)
            if bias is not None and (bias.dtype != torch.float32 or bias.shape != shape[:1]):
                raise ValueError(f"layer {i}: the bias of {name} must be float32 {shape[:1]}")
        for norm in (self.input_norm, self.post_norm):
            if norm is not None:
                check_norm(norm, hidden, f"layer {i}: norms")
        for pool in (self.k_pool, self.v_pool):
            plain = pool.dtype == torch.float32 and pool.is_contiguous()
            if not plain or pool.shape[1:] != (kv_heads, head_dim):
                raise ValueError(
                    f"layer {i}: KV pools must be contiguous float32 "
                    f"[slots, {kv_heads}, {head_dim}]"
                )


def check_norm(norm: torch.Tensor, hidden: int, name: str) -> None:
    """Refuse norm weights that are not float32 [hidden]."""
    if norm.dtype != torch.float32 or norm.shape != (hidden,):
        raise ValueError(f"{name} must be float32 [{hidden}]")

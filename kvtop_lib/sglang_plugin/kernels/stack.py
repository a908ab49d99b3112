"""A whole Llama stack in one call into C."""

import ctypes
import dataclasses

import torch

from .attention import Batch, attention
from .lib import CLayer, CStack, native
from .linear import Packed, linear
from .rows import fused_add_rms_norm, rms_norm, rope_, silu_and_mul, store_kv


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


class LlamaStack:
    """Decoder layers and final norm; prepared once, then one C call per forward.

    Parameters
    ----------
    layers
        `LlamaLayer` of each layer.
    final_norm
        float32 [hidden], or None: then the result is the residual sum (EAGLE draft layer).
    cos_sin_cache
        float32 [positions, rotary] as in SGLang's `RotaryEmbedding`; when SGLang replaces it by
        a longer one, assign the new tensor to `.cos_sin_cache`.
    q_heads, head_dim
        Query heads and elements per head; KV heads follow from the pools.
    eps
        Of all norms.
    scale
        Factor on q . k; None means head_dim ** -0.5.

    Notes
    -----
    The object keeps all tensors alive. Weights and pools must not be moved or re-allocated
    afterwards (writing into them is fine).
    """

    def __init__(
        self,
        layers,
        final_norm,
        cos_sin_cache,
        q_heads: int,
        head_dim: int,
        eps: float,
        scale: float | None = None,
    ):
        self.layers = list(layers)
        if not self.layers:
            raise ValueError("a stack needs at least one layer")
        self.final_norm, self.eps = final_norm, eps
        self.q_heads, self.head_dim = q_heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.hidden = self.layers[0].o.n
        self.ffn = self.layers[0].down.k
        self.kv_heads = self.layers[0].k_pool.shape[1]
        for i, layer in enumerate(self.layers):
            self._check(i, layer)
        self._array = (CLayer * len(self.layers))(*(layer.struct() for layer in self.layers))
        norm = None if final_norm is None else final_norm.data_ptr()
        self._struct = CStack(
            ctypes.addressof(self._array),
            norm,
            None,
            len(self.layers),
            self.hidden,
            self.ffn,
            0,
            eps,
        )
        self.cos_sin_cache = cos_sin_cache
        self._work = torch.empty(0)

    def _check(self, i: int, layer: LlamaLayer) -> None:
        q, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "qkv": (q + 2 * kv, self.hidden),
            "o": (self.hidden, q),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }
        for name, shape in shapes.items():
            packed = getattr(layer, name)
            if (packed.n, packed.k) != shape:
                raise ValueError(f"layer {i}: {name} is {packed.n} x {packed.k}, not {shape}")
            bias = layer.biases.get(name)
            if bias is not None and (bias.dtype != torch.float32 or bias.shape != shape[:1]):
                raise ValueError(f"layer {i}: the bias of {name} must be float32 {shape[:1]}")
        for norm in (layer.input_norm, layer.post_norm, self.final_norm):
            if norm is not None and (norm.dtype != torch.float32 or norm.shape != (self.hidden,)):
                raise ValueError(f"layer {i}: norms must be float32 [{self.hidden}]")
        for pool in (layer.k_pool, layer.v_pool):
            if (
                pool.dtype != torch.float32
                or not pool.is_contiguous()
                or pool.shape[1:] != (self.kv_heads, self.head_dim)
            ):
                raise ValueError(
                    f"layer {i}: KV pools must be contiguous float32 "
                    f"[slots, {self.kv_heads}, {self.head_dim}]"
                )

    @property
    def cos_sin_cache(self) -> torch.Tensor:
        """float32 [positions, rotary]."""
        return self._cos_sin

    @cos_sin_cache.setter
    def cos_sin_cache(self, value: torch.Tensor) -> None:
        if value.dtype != torch.float32 or not value.is_contiguous():
            raise ValueError("cos_sin_cache must be contiguous float32")
        self._cos_sin = value
        self._struct.cos_sin, self._struct.rotary = value.data_ptr(), value.shape[1]

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: Batch,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all layers on the new tokens of a batch; their K and V are stored to `slots`.

        Parameters
        ----------
        x
            float32 [tokens, hidden], contiguous: embeddings. Overwritten: afterwards the
            residual sum before the final norm.
        positions
            int64 [tokens]: RoPE positions.
        slots
            int64 [tokens]: where K and V go (`out_cache_loc`); `batch.req_to_token` must
            already name them.
        batch
            Requests and lengths, the new tokens included.
        out
            float32 [tokens, hidden] or None.

        Returns
        -------
        torch.Tensor
            `out`: final-normed hidden states [tokens, hidden].
        """
        rows = x.shape[0]
        for name, t, dtype, size in (
            ("x", x, torch.float32, rows * self.hidden),
            ("positions", positions, torch.int64, rows),
            ("slots", slots, torch.int64, rows),
        ):
            if t.dtype != dtype or t.numel() != size or not t.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous {dtype} with {size} elements, "
                    f"not {t.dtype} {tuple(t.shape)}"
                )
        if out is None:
            out = torch.empty(rows, self.hidden)
        library = native()
        if library is None:
            return out.copy_(self._slow(x, positions, slots, batch))
        struct = batch.struct(
            self.q_heads, self.kv_heads, self.head_dim, self.head_dim, self.scale, 0.0
        )
        struct.k_slot = struct.v_slot = self.kv_heads * self.head_dim
        need = rows * library.kvtop_stack_workspace(
            ctypes.byref(self._struct), ctypes.byref(struct)
        )
        if self._work.numel() < need:
            self._work = torch.empty(need)
        library.kvtop_stack(
            ctypes.byref(self._struct),
            ctypes.byref(struct),
            positions.data_ptr(),
            slots.data_ptr(),
            x.data_ptr(),
            out.data_ptr(),
            self._work.data_ptr(),
            rows,
        )
        return out

    def _slow(self, x, positions, slots, batch) -> torch.Tensor:
        """The same from the single operations (works without the C library)."""
        width = self.kv_heads * self.head_dim
        added = None
        for layer in self.layers:
            if added is not None:
                x.add_(added)
            normed = x if layer.input_norm is None else rms_norm(x, layer.input_norm, self.eps)
            qkv = linear(normed, layer.qkv, layer.biases.get("qkv"))
            q, k, v = qkv.split([self.q_heads * self.head_dim, width, width], dim=-1)
            rope_(positions, q, k, self.head_dim, self._cos_sin)
            store_kv(k, v, layer.k_pool, layer.v_pool, slots)
            seen = attention(
                q.unflatten(1, (self.q_heads, self.head_dim)),
                layer.k_pool,
                layer.v_pool,
                batch,
                self.scale,
            )
            normed = linear(seen.flatten(1), layer.o, layer.biases.get("o"))
            fused_add_rms_norm(normed, x, layer.post_norm, self.eps)
            acted = silu_and_mul(linear(normed, layer.gate_up, layer.biases.get("gate_up")))
            added = linear(acted, layer.down, layer.biases.get("down"))
        x.add_(added)
        return x if self.final_norm is None else rms_norm(x, self.final_norm, self.eps)

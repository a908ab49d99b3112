"""A whole Llama stack in one call into C."""

import ctypes

import torch

from .attention import Batch, attention
from .layer import check_norm
from .lib import CLayer, CStack, native
from .linear import linear
from .rows import fused_add_rms_norm, rms_norm, rope_, silu_and_mul, store_kv


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
            layer.check(i, q_heads, self.kv_heads, head_dim, self.hidden, self.ffn)
        if final_norm is not None:
            check_norm(final_norm, self.hidden, "final norm")
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

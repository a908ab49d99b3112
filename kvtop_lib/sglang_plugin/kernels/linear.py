"""Linear layers on packed weights: any number of rows gives the same bits per row."""

import ctypes
import dataclasses
import functools
import mmap

import torch

from .lib import CLinear, native

LANES = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """Weights of one linear layer in the kernels' panel layout.

    Attributes
    ----------
    panels
        bf16: int32 [ceil(N/16), ceil(K/2), 16], two k of one column per word (even k low);
        float32: [ceil(N/16), K, 16].
    n, k
        Output and input features.
    is_float32
        Whether the weights are kept in float32.
    """

    panels: torch.Tensor
    n: int
    k: int
    is_float32: bool

    def struct(self, bias: torch.Tensor | None = None) -> CLinear:
        """The C view; it borrows the memory of `panels` and `bias`."""
        return CLinear(
            self.panels.data_ptr(),
            bias.data_ptr() if bias is not None else None,
            self.n,
            self.k,
            int(self.is_float32),
        )

    @functools.cached_property
    def _pointer(self) -> int:
        object.__setattr__(self, "_struct", self.struct())
        return ctypes.addressof(self._struct)

    @functools.cached_property
    def dense(self) -> torch.Tensor:
        """The weights as float32 [N, K], exact (kept once made: the torch fallback's copy)."""
        if self.is_float32:
            wide = self.panels
        else:
            pairs = self.panels.view(torch.bfloat16).view(*self.panels.shape, 2)
            wide = pairs.transpose(2, 3).reshape(self.panels.shape[0], -1, LANES).float()
        return wide.transpose(1, 2).reshape(-1, wide.shape[1])[: self.n, : self.k].contiguous()


def _big_buffer(words: int) -> torch.Tensor:
    """Zeroed int32 buffer in huge pages where the system has them: fewer page walks."""
    pages = mmap.mmap(-1, max(words * 4, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages: ordinary ones do
            pass
    return torch.frombuffer(pages, dtype=torch.int32)


def pack_weight(w: torch.Tensor, *, allow_float32: bool = True) -> Packed:
    """Pack a weight matrix for `linear`.

    Parameters
    ----------
    w
        [N, K], bfloat16, or float32. float32 values that all are bf16 numbers are stored as bf16
        (half the bytes, the same results); others stay float32. Nothing is ever rounded.
    allow_float32
        False refuses weights that are not exactly bf16.

    Raises
    ------
    ValueError
        Not a matrix of one of the two types, or not exactly bf16 though demanded.
    """
    if w.dim() != 2 or w.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(
            f"pack_weight takes a bfloat16 or float32 matrix, not {w.dtype} "
            f"{tuple(w.shape)}: convert it first"
        )
    narrow = w.detach().to(torch.bfloat16)
    exact = w.dtype == torch.bfloat16 or torch.equal(narrow.float(), w.detach())
    if not exact and not allow_float32:
        raise ValueError(
            "these float32 weights are not exactly bf16 numbers: store the "
            "checkpoint in bf16, or allow float32"
        )
    n, k = w.shape
    panels, depth = (n + LANES - 1) // LANES, (k + 1) // 2 if exact else k
    buffer = _big_buffer(max(panels * depth, 1) * LANES)[: panels * depth * LANES]
    if exact:
        target = buffer.view(torch.bfloat16).view(panels, depth, LANES, 2)
        target = target.permute(0, 2, 1, 3)  # panel, column, pair, parity
        padded = torch.zeros(panels * LANES, depth * 2, dtype=torch.bfloat16)
        padded[:n, :k] = narrow
        target.copy_(padded.view(panels, LANES, depth, 2))
        return Packed(buffer.view(panels, depth, LANES), n, k, False)
    wide = buffer.view(torch.float32).view(panels, depth, LANES)
    padded = torch.zeros(panels * LANES, k)
    padded[:n] = w.detach()
    wide.copy_(padded.view(panels, LANES, k).transpose(1, 2))
    return Packed(wide, n, k, True)


def rows_of(x: torch.Tensor, width: int, name: str) -> tuple[int, int]:
    """(rows, row stride) of a float32 tensor [..., width] whose rows are contiguous inside."""
    if x.dtype != torch.float32 or x.shape[-1] != width:
        raise ValueError(
            f"{name} must be float32 with {width} columns, not {x.dtype} {tuple(x.shape)}"
        )
    if x.dim() == 2 and x.stride(1) == 1:
        return x.shape[0], x.stride(0)
    if not x.is_contiguous():
        raise ValueError(
            f"{name} has strides {x.stride()}: pass a contiguous tensor or a matrix "
            "with contiguous rows"
        )
    return x.numel() // width if width else 0, width


def linear(
    x: torch.Tensor,
    packed: Packed,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x @ w.T + bias` in float32, each element one fma chain over k in order.

    Parameters
    ----------
    x
        float32 [..., K]; a matrix may have any row stride.
    packed
        From `pack_weight`.
    bias
        float32 [N] or None.
    out
        float32 [..., N] to write into, or None for a new tensor.

    Raises
    ------
    ValueError
        Another type, width or stride.
    """
    rows, ldx = rows_of(x, packed.k, "x")
    if bias is not None and (
        bias.dtype != torch.float32 or bias.numel() != packed.n or not bias.is_contiguous()
    ):
        raise ValueError(f"bias must be contiguous float32 [{packed.n}]")
    if out is None:
        out = torch.empty(*x.shape[:-1], packed.n)
    out_rows, ldy = rows_of(out, packed.n, "out")
    if out_rows != rows:
        raise ValueError(f"out has {out_rows} rows, x has {rows}")
    library = native()
    if library is None:
        return out.copy_(torch.nn.functional.linear(x, packed.dense, bias))
    if bias is None:
        library.kvtop_linear(packed._pointer, x.data_ptr(), ldx, out.data_ptr(), ldy, rows)
    else:
        struct = packed.struct(bias)
        library.kvtop_linear(ctypes.byref(struct), x.data_ptr(), ldx, out.data_ptr(), ldy, rows)
    return out

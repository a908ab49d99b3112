"""The builds under test: the best of this CPU, AVX2, plain C, and the torch fallback."""

import functools
import os

import pytest
import torch

from kvtop_lib.sglang_plugin.kernels import build, lib

VARIANTS = ("best", "avx2", "torch")
COMPILED = ("best", "avx2", "portable")
TARGETS = {"best": None, "avx2": "x86-64-v3", "portable": "x86-64"}


@functools.cache
def library(variant: str):
    """The library of a variant; a machine that cannot build it skips, but not in CI."""
    if variant == "torch":
        return None
    try:
        return lib.load(TARGETS[variant])
    except build.BuildError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        return error


def on(variant: str):
    """Context in which the kernels run on one variant."""
    found = library(variant)
    if isinstance(found, Exception):
        pytest.skip(str(found))
    return lib.using(found)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded standard normal float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bits(x: torch.Tensor) -> torch.Tensor:
    """The raw words of a float32 tensor, so that equality means bit equality."""
    return x.contiguous().view(torch.int32)

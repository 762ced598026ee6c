"""Shared parts of the tests of native kernels: where they run, and what must be equal to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from grace.compute import backends

TARGETS = backends.available()[1:]
needs_native = pytest.mark.skipif(not TARGETS, reason="the native kernels were not built here")


@contextlib.contextmanager
def with_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_in_bytes(a), _in_bytes(b))


def _in_bytes(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # of one number any strides are contiguous


def offset(x: Tensor, by: int) -> Tensor:
    """A copy whose memory starts ``by`` numbers behind an aligned place."""
    out = torch.empty(x.numel() + by, dtype=x.dtype)[by:].view(x.shape)
    return out.copy_(x)

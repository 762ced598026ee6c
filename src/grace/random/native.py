"""The bindings of the native kernels that draw random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P, U

if TYPE_CHECKING:
    from grace.random import Stream

_MOST = (1 << 32) - 1  # the most numbers that a subset is drawn from
for _name in ("words", "uniform", "subset"):
    native.declare(_name, U, U, U, N, N, P, I)


def fill_words(out: Tensor, rng: Stream, first: int) -> None:
    native.c.words(
        *rng.native_key(), first, len(out), native.address("out", out, torch.int32, 2 * len(out)), native.threads()
    )


def fill_uniform(out: Tensor, rng: Stream, first: int) -> None:
    n = out.numel()
    native.c.uniform(*rng.native_key(), first, n, native.address("out", out, torch.float32, n), native.threads())


def fill_subset(out: Tensor, rng: Stream, n: int) -> Any:
    if n > _MOST:
        return NotImplemented
    k = out.numel()
    return native.c.subset(*rng.native_key(), n, k, native.address("out", out, torch.int64, k), native.threads())

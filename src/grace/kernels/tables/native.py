"""The bindings of the native kernels for rounding to tables."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import D, I, N, P

native.declare("round_to_table", P, P, P, N, N, P, I, P, I)
native.declare("sum_entries", P, N, N, P, I, P, I)
native.declare("table_means", P, P, P, N, N, P, I, D, P, I)
_MOST = 16  # entries


def round_to_table(y: Tensor, bounds: Tensor, block: int, table: tuple[int, ...], u: Tensor) -> Any:
    if not _fits(table) or not _are(torch.float32, y, bounds, u):
        return NotImplemented
    codes, n = torch.empty_like(y, dtype=torch.uint8), y.shape[1]
    native.c.round_to_table(
        y.data_ptr(), bounds.data_ptr(), u.data_ptr(), n, block, _entries(table).data_ptr(), len(table), codes.data_ptr(),
        native.threads(),
    )  # fmt: skip
    return codes


def sum_entries(codes: Tensor, table: tuple[int, ...]) -> Any:
    if not _fits(table) or not _are(torch.uint8, codes):
        return NotImplemented
    W, n = codes.shape
    sums = torch.empty(1, n, dtype=torch.int32)
    native.c.sum_entries(
        codes.data_ptr(), W, n, _entries(table).data_ptr(), len(table), sums.data_ptr(), native.threads()
    )
    return sums


def sum_means(sums: Tensor, bounds: Tensor, block: int, factor: float) -> Any:
    if not _are(torch.int32, sums) or not _are(torch.float32, bounds):
        return NotImplemented
    return _means(None, sums, bounds, block, None, factor)


def entry_means(codes: Tensor, bounds: Tensor, block: int, table: tuple[int, ...]) -> Any:
    if not _fits(table) or not _are(torch.uint8, codes) or not _are(torch.float32, bounds):
        return NotImplemented
    return _means(codes, None, bounds, block, _entries(table), 2 / table[-1])


def _means(
    codes: Tensor | None, sums: Tensor | None, bounds: Tensor, block: int, entries: Tensor | None, factor: float
) -> Tensor:
    like = codes if sums is None else sums
    assert like is not None
    out, n = torch.empty_like(like, dtype=torch.float32), like.shape[1]
    native.c.table_means(
        None if codes is None else codes.data_ptr(), None if sums is None else sums.data_ptr(), bounds.data_ptr(), n, block,
        None if entries is None else entries.data_ptr(), 0 if entries is None else entries.numel(), factor, out.data_ptr(),
        native.threads(),
    )  # fmt: skip
    return out


def _fits(table: tuple[int, ...]) -> bool:
    return 2 <= len(table) <= _MOST


def _are(dtype: torch.dtype, *tensors: Tensor) -> bool:
    return all(x.dtype is dtype and x.is_cpu and x.is_contiguous() for x in tensors)


@functools.lru_cache(maxsize=64)
def _entries(table: tuple[int, ...]) -> Tensor:
    """T as float32, kept for as long as its address is used."""
    return torch.tensor(table, dtype=torch.float32)

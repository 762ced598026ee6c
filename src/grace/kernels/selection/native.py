"""The bindings of the native kernels that select."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import I, N, P
from grace.kernels import check

native.declare("topk", P, P, P, N, N, N, I, P, P, I)
native.declare("above", P, P, P, N, I, I, N, P, P, P, I)
_MOST = (1 << 31) - 1
_LARGEST = torch.finfo(torch.float32).max


def select_topk(rows: Tensor, k: int) -> Any:
    b, n = rows.shape
    if not _fits(rows) or k == n or b == 0:
        return NotImplemented
    return take_topk(rows.contiguous(), k)[0].long()


def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Any:
    if not _fits(row):
        return NotImplemented
    return _take_above(row.contiguous(), _key(bound, strict), False, None, None)[0].long()


def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> Any:
    if not _fits(rows):
        return NotImplemented
    b, n = rows.shape
    sent, index = (
        torch.empty(b, k, dtype=torch.float32, device="cpu"),
        torch.empty(b, k, dtype=torch.int32, device="cpu"),
    )
    tensors = check.same_shape(rows, memory, rest)
    done = native.c.topk(*tensors, b, n, k, narrow, *_outputs(index, sent, b * k), native.threads())
    if done < 0:
        raise MemoryError(f"kernels: no memory to select {k} numbers of {n}")
    return index, sent, bool(done)


def take_at_least(
    row: Tensor,
    bound: float,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
) -> Any:
    if not _fits(row):
        return NotImplemented
    return _take_above(row, _key(min(bound, _LARGEST) if strict else bound, strict), narrow, memory, rest)


def _fits(x: Tensor) -> bool:
    """True if native code takes it."""
    return x.dtype is torch.float32 and x.shape[-1] <= _MOST


def _key(bound: float, strict: bool) -> int:
    """The least bits of a magnitude that is selected."""
    if not bound >= 0:
        return 0
    bits = ctypes.c_int32.from_buffer(ctypes.c_float(bound)).value
    return bits + strict


def _outputs(index: Tensor, sent: Tensor, count: int) -> tuple[int, int]:
    return native.address("index", index, torch.int32, count), native.address("sent", sent, torch.float32, count)


def _take_above(
    row: Tensor, key: int, narrow: bool, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Tensor, bool]:
    n, where, finite = row.numel(), check.same_shape(row, memory, rest), ctypes.c_int32()
    room = min(n, max(4096, n // 16))
    while True:
        index, sent = (
            torch.empty(room, dtype=torch.int32, device="cpu"),
            torch.empty(room, dtype=torch.float32, device="cpu"),
        )
        k = native.c.above(
            *(*where, n, key, narrow, room, *_outputs(index, sent, room)), ctypes.byref(finite), native.threads()
        )
        if k < 0:
            raise MemoryError(f"kernels: no memory to select from {n} numbers")
        if k <= room:
            return index[:k], sent[:k], bool(finite.value)
        room = k

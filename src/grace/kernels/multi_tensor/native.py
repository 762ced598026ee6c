"""The native kernels for the tensors of a bucket on the CPU: one call of native code for all of them.

A library that was built before that could be leaves them to the reference; so do numbers of other types than float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.flags.finite import on_host
from grace.kernels.finite import native as declared  # noqa: F401 - says what the kernels take
from grace.kernels.noting import MEMORY, ROWS, THREADS, WIRE, Call, Table, possible
from grace.kernels.tensor_list import TensorList


def clear_many(flags: Tensor, many: TensorList) -> Any:
    return None if on_host(flags.device) and bool(flags.all()) else NotImplemented


def finite_many(flags: Tensor, many: TensorList) -> Any:
    if not _takes(many):
        return NotImplemented

    def make() -> Table:
        return Table([Call(native.c.finite, (ROWS, n, THREADS), 0) for n in many.sizes])

    table: Table = many.once("finite", make)
    table.put(ROWS, many.table[:, 0])
    return _done(table) & flags


def round_many(message: Tensor, many: TensorList, rounded: TensorList, weight: float) -> Any:
    if weight != 1.0 or not (_takes(many) and _takes(rounded)):
        return NotImplemented

    def make() -> Table:
        return Table([Call(native.c.sum_finite, (ROWS, None, WIRE, n, THREADS), 0) for n in many.sizes])

    table: Table = many.once("copies", make)
    table.put(ROWS, many.table[:, 0])
    table.put(WIRE, rounded.table[:, 0])
    return _done(table)


def widen_many(message: Tensor, rounded: TensorList, many: TensorList) -> Any:
    if not (_takes(many) and _takes(rounded)):
        return NotImplemented

    def make() -> tuple[Table, Tensor]:
        zeros = torch.zeros(max(many.sizes), dtype=torch.float32, device="cpu")  # -0 becomes 0
        table = Table([Call(native.c.sum_finite, (ROWS, MEMORY, WIRE, n, THREADS), 0) for n in many.sizes])
        table.put(MEMORY, zeros.data_ptr())
        return table, zeros

    table = many.once("sums with 0", make)[0]
    table.put(ROWS, rounded.table[:, 0])
    table.put(WIRE, many.table[:, 0])
    return _done(table)


def _takes(many: TensorList) -> bool:
    """True if native code can go through these by one call."""
    return possible() and on_host(many.device) and many.rows == 1 and len(many) > 0 and many.like.dtype is torch.float32


def _done(table: Table) -> Tensor:
    """``[T]`` bool: of which calls the answer was yes."""
    table.run(0)
    return table.results != 0

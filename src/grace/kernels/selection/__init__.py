"""Selecting numbers of large magnitude: the k largest, or all that reach a bound; alone, or with error feedback in one pass.

A NaN counts as infinite; the first of equal magnitudes win.

Letters: b rows of n <= 2**31 - 1 numbers, of which k are selected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = [
    "add_memories_many",
    "round_to_bfloat16",
    "select_at_least",
    "select_topk",
    "take_at_least",
    "take_topk",
    "take_topk_many",
]


def round_to_bfloat16(values: Tensor) -> Tensor:
    """The nearest bfloat16, in the same shape, which is finite where the number is."""
    largest = torch.finfo(torch.bfloat16).max
    return values.clamp(-largest, largest).to(torch.bfloat16)


@operation
def select_topk(rows: Tensor, k: int) -> Tensor:
    """``[b, n]``, of any floating type -> ``[b, k]`` int64, ascending: the k largest magnitudes of each row, 1 <= k <= n."""


@operation
def select_at_least(row: Tensor, bound: float, *, strict: bool = False) -> Tensor:
    """``[n]``, of any floating type -> int64, ascending: the places of all |x| >= bound (strict: > bound), and of all NaN."""


@operation
def take_topk(
    rows: Tensor, k: int, memory: Tensor | None = None, rest: Tensor | None = None, *, narrow: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """The k numbers of ``p = rows + memory`` of largest magnitude: (places ``[b, k]`` ascending, int32 or int64; what is sent
    for them ``[b, k]``; whether p was finite). With ``narrow`` the nearest bfloat16 is sent.

    ``rest`` becomes p minus that; it must be there if ``memory`` is, and may be ``rows`` if it is not. All are float32
    ``[b, n]``, contiguous. If p is not finite, what is sent and the rest mean nothing. 1 <= k <= n.
    """


@operation
def take_topk_many(
    index: Tensor, sent: Tensor, many: TensorList, kept: tuple[int, ...], *, narrow: bool = False
) -> Tensor:
    """As :func:`take_topk` of each row of several tensors, of which ``kept`` are selected: places into ``index [K]`` int64,
    what is sent for them into ``sent [K]`` float32, K the sum of kept: ``[T]`` bool, which tensors were finite.
    """


@operation
def add_memories_many(storage: Tensor, many: TensorList) -> Tensor:
    """Sets the rests of several tensors, if there are any, to the sums of xs and memories: ``[T]`` bool, which sums are
    finite. They are on the device of ``storage``, of any shape.
    """


@operation
def take_at_least(
    row: Tensor,
    bound: float,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
) -> tuple[Tensor, Tensor, bool]:
    """As :func:`take_topk`, for one row ``[n]``: all |p| >= bound (strict: > bound), 0 <= bound. Returns ``[k]``, ``[k]``.

    Infinite numbers and NaN are always among them.
    """

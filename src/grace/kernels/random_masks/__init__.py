"""The numbers at the positions of a random subset, which need not exist as a list: the hot paths of random-k.

Letters: b rows of n numbers; k positions, ``rng.subset(n, k)``, the same for all rows; W workers. Of a bucket: T tensors, B
numbers of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.errors import PayloadError
from grace.kernels.blocks import block_count
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["Drawing", "add_subset", "put_subsets_many", "sum_subsets_many", "take_subset", "take_subsets_many"]


@dataclass(frozen=True)
class Drawing:
    """Random subsets, one of each tensor of a bucket.

    kept: how many numbers, 1 <= kept <= n_t, which are sent in the order of ``rng.subset``; or how many of its blocks, which
        are sent in ascending order. block: B, of which the last one of a tensor may be shorter; None: numbers.
    cyclic: blocks are not drawn anew: the order of those of the first step goes round, a turn in each step.
    """

    kept: tuple[int, ...]
    block: int | None
    cyclic: bool = False

    @property
    def unit(self) -> int:
        """Numbers of what is drawn."""
        return self.block or 1

    def width(self, t: int, n: int) -> int:
        """Count of the numbers of tensor t, which has n, that are sent: zeros follow where the short block leaves fewer."""
        return min(n, self.kept[t] * self.unit)

    def count(self, n: int) -> int:
        """From how many numbers or blocks of a tensor it is drawn."""
        return block_count(n, self.unit)

    def choose(self, t: int, n: int, rng: Stream, device: torch.device | str = "cpu") -> Tensor:
        """int64: what is drawn of tensor t, which has n numbers, in the step of its stream; in order of being drawn."""
        count, k = self.count(n), self.kept[t]
        if not self.cyclic:
            return rng.subset(count, k, device)
        begin = rng.step % block_count(count, k) * k
        return self.order(count, replace(rng, step=0), device)[begin : begin + k]

    @staticmethod
    def order(count: int, rng: Stream, device: torch.device | str = "cpu") -> Tensor:
        """A permutation of the blocks: all but one drawn in a random order, then the one that is missing."""
        drawn = rng.subset(count, count - 1, device)
        return torch.cat([drawn, count * (count - 1) // 2 - drawn.sum().view(1)])


@operation
def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    """``rows [b, n]``, float32, contiguous -> new ``[b, k]``: the numbers at the positions, in the order of the positions.

    With ``left``, ``rows`` is multiplied by it at these positions; 0 <= k <= n.
    """


@operation
def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    """Adds to ``out [b, n]``, float32, contiguous, at the positions: weight times each of the wires ``[b, k]``, in order.

    Raises:
        PayloadError: wires that are not float32, or not all of the same shape, or that have more numbers than ``out``.
    """


@operation
def take_subsets_many(message: Tensor, many: TensorList, drawing: Drawing, step: int, left: Sequence[float]) -> Tensor:
    """``p_t = x_t + memory_t`` for each tensor -> ``[T]`` bool, which of them were finite.

    What is drawn of p_t goes to its place in ``message [s]`` float32; places are in bytes. Each rest becomes p_t, which is
    multiplied by ``left[t]`` where it is drawn. Where p_t is not finite, its part of the message and its rest mean nothing.
    Of each of a tensor's rows it is drawn alike; ``left`` has a number for each row. Rests may be the xs.
    """


@operation
def put_subsets_many(
    message: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float], into: TensorList
) -> Tensor:
    """Sets each x_t of ``into``, float32, to ``weight[t]`` times its part of ``message [s]`` float32 where
    :func:`take_subsets_many` took it from ``many``, else 0: ``[T]`` bool, of which tensors these are all finite.
    """


@operation
def sum_subsets_many(rows: Tensor, many: TensorList, drawing: Drawing, step: int, weight: Sequence[float]) -> Tensor:
    """As :func:`put_subsets_many`, into ``many`` itself, of the sum of the parts of all W messages ``rows [W, s]`` float32:
    each times ``weight[t]``, in their order. ``[T]`` bool, of which tensors all parts are finite.
    """


def check_wires(received: Sequence[Tensor], out: Tensor) -> int:
    """The k of wires float32 ``[b, k]`` for ``out [b, n]``.

    Raises:
        PayloadError: wires that are not float32, or not all of the same shape, or that have more numbers than ``out``.
    """
    b, n = out.shape
    k = received[0].shape[1] if received and received[0].ndim == 2 else 0
    for wire in received:
        if wire.shape != (b, k) or wire.dtype is not torch.float32 or k > n:
            raise PayloadError(
                f"payload of {list(wire.shape)} numbers ({wire.dtype}) for {b} rows of {n}; all must be float32 {[b, k]}"
            )
    return k

"""The numbers at the positions of a random subset, which need not exist as a list: the hot paths of random-k.

Letters: b rows of n numbers; k positions, ``rng.subset(n, k)``, the same for all rows; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.errors import PayloadError

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["add_subset", "take_subset"]


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

"""The specification of taking and adding subsets, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.kernels.subsets import check_wires

if TYPE_CHECKING:
    from grace.random import Stream


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    index = rng.subset(rows.shape[1], k, rows.device)
    taken = rows[:, index]
    if left is not None:
        rows[:, index] = taken * left
    return taken


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    (b, n), k = out.shape, check_wires(received, out)
    index = rng.subset(n, k, out.device).expand(b, k)
    for wire in received:
        out.scatter_add_(1, index, wire * weight)

"""The numbers at the positions of a random subset, which need not exist as a list: the hot paths of random-k.

Letters: b rows of n numbers; k positions, ``rng.subset(n, k)``, the same for all rows; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace import backends, native
from grace.errors import PayloadError
from grace.kernels import check

if TYPE_CHECKING:
    from grace.random import Stream

_MOST_NATIVE = (1 << 32) - 1  # numbers of a row
_TAKE = native.declare(
    "take_subset",
    *(native.P, native.N, native.N, native.N, native.U, native.U, native.U, native.P, native.I, native.F, native.I),
)
_ADD = native.declare(
    "add_subset",
    *(native.P, native.N, native.P, native.N, native.N, native.U, native.U, native.U, native.F, native.I),
)


def take_subset(rows: Tensor, k: int, rng: Stream, left: float | None = None) -> Tensor:
    """``rows [b, n]``, float32, contiguous -> new ``[b, k]``: the numbers at the positions, in the order of the positions.

    With ``left``, they are multiplied by it where they were, in ``rows``; 0 <= k <= n.
    """
    b, n = rows.shape
    at = check.numbers("rows", rows) if rows.is_cpu else 0
    fast = backends.function(_TAKE) if rows.device.type == "cpu" and n <= _MOST_NATIVE else None
    if fast is None or not 0 <= k <= n:
        index = rng.subset(n, k, rows.device)
        taken = rows[:, index]
        if left is not None:
            rows[:, index] = taken * left
        return taken
    wire = torch.empty(b, k)
    keep, factor = (0, 0.0) if left is None else (1, left)
    fast(at, b, n, k, *rng.native_key(), wire.data_ptr(), keep, factor, native.threads())
    return wire


def add_subset(received: Sequence[Tensor], out: Tensor, weight: float, rng: Stream) -> None:
    """Out ``[b, n]``, float32, contiguous, += at the positions: weight times each of the wires ``[b, k]``, in their order.

    Raises:
        PayloadError: wires that are not float32, or not all of the same shape, or that have more numbers than ``out``.
    """
    b, n = out.shape
    k = received[0].shape[1] if received and received[0].ndim == 2 else 0
    at = check.numbers("out", out) if out.is_cpu else 0
    for wire in received:
        if wire.shape != (b, k) or wire.dtype is not torch.float32 or k > n:
            raise PayloadError(
                f"payload of {list(wire.shape)} numbers ({wire.dtype}) for {b} rows of {n}; all must be float32 {[b, k]}"
            )
    fast = backends.function(_ADD) if out.device.type == "cpu" and n <= _MOST_NATIVE else None
    if fast is None:
        index = rng.subset(n, k, out.device).expand(b, k)
        for wire in received:
            out.scatter_add_(1, index, wire * weight)
        return
    addresses = check.wire_rows([wire.contiguous().view(torch.uint8) for wire in received], b, 4 * k)
    for row in range(b):
        mine = check.pointers(addresses[row * len(received) : (row + 1) * len(received)])
        fast(mine, len(received), at + 4 * n * row, n, k, *rng.native_key(), weight, native.threads())

"""What the kernels that encode have in common: their C functions take the same arguments first, which are checked here.

Letters: b rows of n numbers; blocks of B numbers; wires of w bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grace import native
from grace.kernels import check

LAYOUTS = 4096  # that a kernel remembers: a model has fewer shapes of tensors


class Layout:
    """What a C function gets that is the same at every step, as C numbers: making them takes longer than a call does.

    Args:
        width: w.
        n, block: n and B; without blocks ``block`` is None.
        knobs: what follows w, as numbers of ctypes.
    """

    __slots__ = ("sizes", "tail", "width")

    def __init__(self, width: int, n: int, block: int | None, *knobs: Any):
        self.width = width
        self.sizes = (native.N(n),) if block is None else (native.N(n), native.N(block))
        self.tail = (native.N(width), *knobs)


def encode(
    fast: Callable[..., int], layout: Layout, rows: Tensor, memory: Tensor | None, rest: Tensor | None, *drawn: Any
) -> tuple[Tensor, bool]:
    """Calls ``fast(rows, memory, rest, b, n, B, wire, w, *knobs, *drawn, threads)``: (wire ``[b, w]`` uint8,
    whether rows + memory was finite).

    Raises:
        InputError: rows, memory or rest are not float32 ``[b, n]``, contiguous, on the CPU.
    """
    shape = rows.shape
    at = check.numbers("rows", rows)
    memory_at = None if memory is None else check.numbers("memory", memory, shape)
    rest_at = None if rest is None else check.numbers("rest", rest, shape)
    b, _ = shape
    wire = torch.empty(b, layout.width, dtype=torch.uint8)
    finite = fast(
        at, memory_at, rest_at, b, *layout.sizes, wire.data_ptr(), *layout.tail, *drawn, torch.get_num_threads()
    )
    return wire, finite != 0

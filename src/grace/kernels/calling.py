"""Calls native kernels that write wires or add them up, and checks what their arguments have in common.

Letters: b rows of n numbers; blocks of B numbers; W wires of w bytes for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.kernels.check import numbers, pointers, wire_rows

_UINT8, _CPU = torch.uint8, torch.device("cpu")  # globals are found faster than attributes of torch
LAYOUTS = 4096  # how many a kernel remembers: a model has fewer shapes of tensors


def new_wire(b: int, width: int) -> Tensor:
    """Uninitialized bytes ``[b, width]`` for a wire."""
    return torch.empty(b, width, dtype=_UINT8, device=_CPU)


class Layout:
    """The arguments of a C function that are the same at every step, as C numbers: making them takes longer than a call.

    Args:
        width: w.
        n, block: n and B; without blocks ``block`` is None.
        knobs: the next arguments, as numbers of ctypes.

    ``tail`` begins with w, how far the wires of two rows are apart.
    """

    __slots__ = ("knobs", "sizes", "tail", "width")

    def __init__(self, width: int, n: int, block: int | None, *knobs: Any):
        self.width = width
        self.sizes: tuple[Any, ...] = (native.N(n),) if block is None else (native.N(n), native.N(block))
        self.knobs = knobs
        self.tail = (native.N(width), *knobs)


def encode(
    kernel: Callable[..., int], layout: Layout, rows: Tensor, memory: Tensor | None, rest: Tensor | None, *more: Any
) -> tuple[Tensor, bool]:
    """Calls ``kernel(rows, memory, rest, b, n, B, wire, w, *knobs, *more, threads)``: (wire ``[b, w]`` uint8,
    whether rows + memory was finite).

    Raises:
        InputError: rows, memory or rest are not float32 ``[b, n]``, contiguous, on the CPU.
        MemoryError: the kernel got none.
    """
    shape = rows.shape
    at = numbers("rows", rows)
    memory_at = None if memory is None else numbers("memory", memory, shape)
    rest_at = None if rest is None else numbers("rest", rest, shape)
    b = shape[0]
    wire = new_wire(b, layout.width)
    place_at = native.address("wire", wire, _UINT8, b * layout.width)
    finite = kernel(at, memory_at, rest_at, b, *layout.sizes, place_at, *layout.tail, *more, torch.get_num_threads())
    if finite < 0:
        raise MemoryError(f"kernels: no memory to encode rows of {list(shape)}")
    return wire, finite != 0


def decode(kernel: Callable[..., int], layout: Layout, received: Sequence[Tensor], out: Tensor, *more: Any) -> int:
    """Calls ``kernel(wires, W, out, n, B, *knobs, *more, threads)`` for each row of out: 0, or why a wire was refused.

    Raises:
        InputError: out is not float32 ``[b, n]``, contiguous, on the CPU; a wire is not uint8.
        PayloadError: a wire is not ``[b, w]``.
    """
    (b, n), W = out.shape, len(received)
    at = numbers("out", out)
    addresses, threads = wire_rows(received, b, layout.width), native.threads()
    for row in range(b):
        wires = pointers(addresses[row * W : (row + 1) * W])
        fault = kernel(wires, W, at + 4 * n * row, *layout.sizes, *layout.knobs, *more, threads)
        if fault:
            return fault
    return 0

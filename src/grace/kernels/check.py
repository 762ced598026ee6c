"""Checks of a tensor before its memory is handed to native code. The messages name the argument and what is legal."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.compute.native import refuse
from grace.errors import InputError, PayloadError

_FLOAT32 = torch.float32  # a global is found faster than an attribute of torch


def numbers(name: str, x: Tensor, shape: Sequence[int] | None = None) -> int:
    """The address of a contiguous float32 tensor in the processor's memory, of this shape if one is given.

    Raises:
        InputError: it is something else.
    """
    if x.dtype is not _FLOAT32 or not x.is_contiguous() or not x.is_cpu or (shape is not None and x.shape != shape):
        raise refuse(name, x, _FLOAT32, "" if shape is None else list(shape))
    return x.data_ptr()


def same_shape(rows: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[int, int | None, int | None]:
    """The addresses of these tensors, of one shape.

    Raises:
        InputError: another type or shape, or not contiguous.
    """
    shape = rows.shape
    return (
        numbers("rows", rows),
        None if memory is None else numbers("memory", memory, shape),
        None if rest is None else numbers("rest", rest, shape),
    )


def wire_rows(wires: Sequence[Tensor], rows: int, width: int) -> list[int]:
    """The addresses of the rows of these uint8 wires ``[rows, width]``: those of the first row, then of the second, ...

    Raises:
        InputError: another dtype, or bytes that do not lie side by side.
        PayloadError: another number of rows or bytes.
    """
    shape = (rows, width)
    if rows == 1:  # the usual case, in as few calls as possible
        plain = [
            w.data_ptr()
            for w in wires
            if w.dtype is torch.uint8 and w.shape == shape and w.is_contiguous() and w.is_cpu
        ]
        if len(plain) == len(wires):
            return plain
    for wire in wires:
        if wire.shape != shape:
            kind = "truncated payload" if wire.ndim == 2 and wire.shape[1] < width else "payload"
            raise PayloadError(f"{kind}: {list(wire.shape)} bytes, but its fields end at {[rows, width]}")
        if wire.dtype is not torch.uint8 or (width > 1 and wire.stride(1) != 1) or not wire.is_cpu:
            place = "" if wire.is_cpu else f" on {wire.device}"
            raise InputError(
                f"kernels: a wire must be uint8 with bytes side by side, got {wire.dtype} {wire.stride()}{place}"
            )
    return [wire.data_ptr() + row * wire.stride(0) for row in range(rows) for wire in wires]


def pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """These addresses as a C array."""
    return (ctypes.c_void_p * len(addresses))(*addresses)

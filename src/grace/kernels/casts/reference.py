"""The specification of wires that are the numbers themselves, in plain torch."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grace.flags.finite import Flag
from grace.kernels.finite import all_finite
from grace.kernels.sums.reference import add_scaled_
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each


def encode_casts_many(message: Tensor, many: TensorList, dtype: torch.dtype) -> Tensor:
    return encode_each(message, many, functools.partial(_encode, dtype))


def _encode(dtype: torch.dtype, t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
    """Tensor t ``[b, n]``: its wires uint8 ``[b, w]``, and whether it is finite."""
    p = x if memory is None else x + memory
    finite = all_finite(p)
    if finite is False:
        p = torch.zeros_like(p)
    largest = torch.finfo(dtype).max
    wire = (p if rest is None else p.clamp(-largest, largest)).to(dtype)
    if rest is not None:
        rest.copy_(p - wire.float())
    return wire.contiguous().view(torch.uint8), finite


def sum_casts_many(rows: Tensor, many: TensorList, dtype: torch.dtype, weight: float) -> None:
    outs = [row for x in many.xs for row in x]
    for out, place in zip(outs, many.places, strict=True):
        out.zero_()
        for wire in rows[:, place : place + out.numel() * dtype.itemsize]:
            add_scaled_(out, wire.view(dtype), weight)

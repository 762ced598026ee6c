"""Wires that are the numbers themselves, as floats of 32 or 16 bits.

Letters: T tensors, b rows of n_t numbers each; W workers; messages of s bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = ["encode_casts_many", "sum_casts_many"]


@operation
def encode_casts_many(message: Tensor, many: TensorList, dtype: torch.dtype) -> Tensor:
    """``p = x + memory`` of each row goes to its place in ``message [s]`` uint8, rounded to ``dtype`` (float32, float16 or
    bfloat16), to nearest and even: ``[T]`` bool, which p were finite. With rests, p is cut to dtype's range before, and each
    rest, which may be x, becomes p minus what the wire says. If p is not finite, wire and rest mean nothing.
    """


@operation
def sum_casts_many(rows: Tensor, many: TensorList, dtype: torch.dtype, weight: float) -> None:
    """Sets each x ``[b, n_t]``, float32: weight times the sum of its numbers in ``rows [W, s]`` uint8, in their order."""

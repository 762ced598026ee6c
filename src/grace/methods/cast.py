from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace.compressor import Compressor
from grace.facts import Facts
from grace.kernels import spans
from grace.random import Stream
from grace.registry import register


@dataclass(frozen=True, slots=True)
class _Cast(Compressor):
    """Rounding to a 16-bit float, to nearest even."""

    summable: ClassVar[bool] = True
    predivide: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype]
    relative_error: ClassVar[float]  # of a normal number

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        if not keep_rest:
            return rows.to(self.dtype)
        largest = torch.finfo(self.dtype).max  # a memory keeps what lies outside the range
        wire = torch.empty_like(rows, dtype=self.dtype)
        for span in spans(*rows.shape):
            part = rows[span.row, span.columns]
            wire[span.row, span.columns] = part.clamp(-largest, largest)
            part.sub_(wire[span.row, span.columns].float())
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for span in spans(*out.shape):
            out[span.row, span.columns].add_(wire[span.row, span.columns].float(), alpha=scale)

    def facts(self, n: int) -> Facts:
        return Facts(contraction=1 - self.relative_error**2, payload=2 * n)


@register("fp16", communicator="allreduce", family="cast", aliases=("fp16compressor",))
@dataclass(frozen=True, slots=True)
class FP16(_Cast):
    """Gradients as IEEE half precision.

    ``y = half(x / W)``; the sum of y over workers is the mean.

    Wire:
        16 n bits, one round, summed by the network in half precision. With ``communicator=scatterreduce`` sums are
        float32 and each number is rounded twice.
    Bias:
        biased per element (round to nearest even); relative error at most 2**-11 for normal numbers: delta = 1 - 2**-22.
        Numbers below 2**-24 vanish; sums above 65,504 become inf, on all ranks, and the step reads as non-finite.
    Differs from the paper:
        divides before it casts, so that the sum cannot overflow. Under a memory the cast saturates, and the memory
        keeps the excess.
    Example:
        >>> method("fp16")
        Allreduce(compressor=FP16())

    Reference:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv 1710.03740.
    """

    dtype: ClassVar[torch.dtype] = torch.float16
    relative_error: ClassVar[float] = math.ldexp(1, -11)


@register("bf16", communicator="allreduce", family="cast", aliases=("bf16compressor",))
@dataclass(frozen=True, slots=True)
class BF16(_Cast):
    """Gradients as bfloat16: float32's range, 8 bits of precision.

    ``y = bf16(x / W)``; the sum of y over workers is the mean.

    Wire:
        16 n bits, one round, summed by the network in bfloat16. With ``communicator=scatterreduce`` sums are float32
        and each number is rounded twice.
    Bias:
        biased per element (round to nearest even); relative error at most 2**-8: delta = 1 - 2**-16.
    Differs from the paper:
        no paper; this is torch's ``bf16_compress_hook``, on every device.
    Example:
        >>> method("bf16:communicator=scatterreduce")
        ScatterReduce(compressor=BF16())

    Reference:
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019, arXiv 1905.12322.
    """

    dtype: ClassVar[torch.dtype] = torch.bfloat16
    relative_error: ClassVar[float] = math.ldexp(1, -8)

"""FP16: IEEE half precision, from "Mixed Precision Training" (Micikevicius et al., ICLR 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from grace.methods.common.cast import Cast
from grace.registry import register


@register("fp16", communicator="allreduce", family="cast", recovers={"whole": ""})
@dataclass(frozen=True, slots=True)
class FP16(Cast):
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

    rounds_to: ClassVar[torch.dtype] = torch.float16
    relative_error: ClassVar[float] = math.ldexp(1, -11)

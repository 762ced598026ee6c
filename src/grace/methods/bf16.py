"""BF16: bfloat16, from "A Study of BFLOAT16 for Deep Learning Training" (Kalamkar et al., 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from grace.methods.common.cast import Cast
from grace.registry import register


@register("bf16", communicator="allreduce", family="cast", recovers={"whole": "communicator=allgather"})
@dataclass(frozen=True, slots=True)
class BF16(Cast):
    """Gradients as bfloat16: float32's range, 8 bits of precision.

    ``y = bf16(x / W)``; the sum of y over workers is the mean.

    Wire:
        16 n bits, one round, summed by the network in bfloat16. With ``communicator=scatterreduce`` sums are float32
        and each number is rounded twice.
    Bias:
        biased per element (round to nearest even); relative error at most 2**-8: delta = 1 - 2**-16.
    Differs from the paper:
        no paper; this is torch's ``bf16_compress_hook``, on every device. To the bit where W is a power of two: otherwise
        the hook divides the rounded numbers, and Grace rounds the quotients.
    Example:
        >>> method("bf16:communicator=scatterreduce")
        ScatterReduce(compressor=BF16())

    Reference:
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019, arXiv 1905.12322.
    """

    rounds_to: ClassVar[torch.dtype] = torch.bfloat16
    relative_error: ClassVar[float] = math.ldexp(1, -8)

"""EF-SignSGD: error feedback fixes SignSGD (Karimireddy et al., ICML 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Count
from grace.kernels import (
    TensorList,
    block_count,
    encode_signs,
    encode_signs_many,
    packed_bytes,
    sum_signs,
    sum_signs_many,
)
from grace.methods.common.parity import with_phase
from grace.random import Stream
from grace.registry import register


@register(
    "efsignsgd",
    communicator="allgather",
    memory="residual",
    family="quantization",
    cases=["block=32", "", "block=1", "block=7,beta=0.9,gamma=0.5"],
    recovers={"one magnitude": "memory=none"},
)
@dataclass(frozen=True, slots=True)
class EFSignSGD(Fused):
    """Scaled signs, made to be used with error feedback.

    ``C(x) = (|x|_1 / B) sgn(x)`` in each block of B elements

    Args:
        block: elements that share a scale, >= 1.
    Wire:
        one scale (float32) for each block, then n bits: n + 32 ceil(n/block) bits, one round.
    Bias:
        biased; delta = |x|_1^2 / (B |x|_2^2), at least 1/B, in each block. Exact for equal magnitudes.
    Differs from the paper:
        the paper has one scale for the whole vector. Zeros are + or - by position, rank and step; the bound holds for
        any choice. The memory is in units of the gradient: with a constant learning rate that is the paper's.
    Example:
        >>> method("efsignsgd:block=1024")
        ErrorFeedback(method=Allgather(compressor=EFSignSGD(block=1024)), beta=1.0, gamma=1.0)

    Reference:
        Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, arXiv 1901.09847, algorithm 2.
    """

    handles_many: ClassVar[bool] = True
    block: Count = 4096

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return with_phase(lambda phase: encode_signs(rows, self.block, phase, memory, rest), rng, [rest])

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_signs(received, out, self.block, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return with_phase(
            lambda phase: encode_signs_many(message, many, self.block, phase), rng, chain([message], many.rests or ())
        )

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_signs_many(rows, many, self.block, scale)

    def passes(self, n: int) -> int | None:
        return 2  # means are sums in a fixed order, before the first bit

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.block) + packed_bytes(n, 1)
        return Facts(contraction=1 / min(n, self.block), payload=payload)

"""Max-min quantization of blocks, as in CGX (Markov et al., Middleware 2022) and Bagua (Gan et al., VLDB 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import PowerOfTwo, Range
from grace.flags.finite import Flag
from grace.kernels import (
    TensorList,
    affine_bytes,
    encode_affine,
    encode_affine_many,
    passes_with_largest,
    sum_affine,
    sum_affine_many,
)
from grace.random import Stream
from grace.registry import register


@register(
    "minmax",
    communicator="allgather",
    family="quantization",
    cases=["block=32", "bits=2", "bits=8,block=16,nearest=true", "bits=3,block=8,memory=residual", "nearest=true"],
)
@dataclass(frozen=True, slots=True)
class MinMax(Fused):
    """Max-min quantization: equal steps from the least number of a block to the largest.

    ``C(x)_i = l + d R((x_i - l) / d)`` with ``q = 2^bits - 1``, ``l = min x`` and ``d = (max x - l) / q`` of the block
    that holds i, where R rounds up or down at random, without bias, or to the nearest.

    Args:
        bits: bits of a code, 2 to 8. CGX uses 4, Bagua 8.
        block: elements that share l and d, a power of two from 2 to 4096.
        nearest: round to the nearest code, as Bagua does, ties up.
    Wire:
        least number and step (float32) of each block, then codes, packed: bits n + 64 ceil(n/block) bits, one round.
    Bias:
        unbiased, omega = (B-1)/(2 q^2); random numbers have 15 bits: a mean is off by at most 2^-16 d. With ``nearest``
        biased, delta = 1 - (B-1)/(2 q^2) where that is positive; else the whole error may exceed the numbers, since the
        grid need not hold zero. With a memory neither is scaled: no number's error exceeds 2/q of the largest magnitude
        (1/q with ``nearest``), which is less than it, so that what is owed stays bounded. A constant block is exact, and the
        ends of others are but for the rounding of float32; zeros need not be.
    Differs from the paper:
        Bagua has one range for the whole chunk of a worker, and shifts the grid so that it holds zero. CGX reduces by
        scatter-reduce (``communicator=scatterreduce``). l and d are float32 whatever the gradient's dtype. Numbers beyond
        2^126 count as that. A step below 2^-126 is 0. This is not the MinMaxSketch of ``sketchml``.
    Example:
        >>> method("minmax:bits=8,nearest=true,communicator=scatterreduce")
        ScatterReduce(compressor=MinMax(bits=8, block=1024, nearest=True))

    Reference:
        Markov, Ramezanikebrya and Alistarh, "CGX: Adaptive System Support for Communication-Efficient Deep Learning",
        Middleware 2022, arXiv 2111.08617; Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations",
        VLDB 2021, arXiv 2107.01499.
    """

    handles_many: ClassVar[bool] = True
    bits: Annotated[int, Range(2, 8)] = 4
    block: Annotated[int, PowerOfTwo(2, 4096)] = 1024
    nearest: bool = False

    @property
    def q(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        return encode_affine(rows, self.bits, self.block, None if self.nearest else rng, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_affine(received, out, self.bits, self.block, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_affine_many(message, many, self.bits, self.block, None if self.nearest else rng.step)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_affine_many(rows, many, self.bits, self.block, scale)

    def passes(self, n: int) -> int | None:
        return passes_with_largest(self.block)

    def facts(self, n: int) -> Facts:
        payload = affine_bytes(n, self.bits, self.block)
        # no number but the ends, which are exact, is off by more than d/2 (squared: on average), and d^2 <= 2 |x|^2 / q^2
        omega = max(0, min(n, self.block) - 1) / (2 * self.q**2)
        if self.nearest:
            return Facts(contraction=1 - omega if omega < 1 else None, payload=payload)
        return Facts(
            unbiased=True, variance=omega, deterministic=False, payload=payload, bias=4 * ROUNDING_BIAS / self.q
        )

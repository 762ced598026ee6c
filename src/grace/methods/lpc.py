"""LPC: low-precision codes (Yu, Wu and Huang, AISTATS 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor, Fused
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import Count, Range, Share, check_knobs
from grace.errors import ConfigurationError
from grace.flags.finite import Flag
from grace.kernels import (
    FixedPoint,
    TensorList,
    encode_fixed,
    encode_fixed_many,
    passes_with_largest,
    sum_fixed,
    sum_fixed_many,
)
from grace.random import Stream
from grace.registry import register


@register(
    "lpc",
    communicator="allgather",
    family="quantization",
    cases=[
        "block=32",
        "bits=2,clip=0.5",
        "bits=8,clip=0.9,memory=residual",
        "bits=3,shrink=true",
        "block=16,nearest=true",
    ],
)
@dataclass(frozen=True, slots=True)
class LPC(Fused):
    """LPC: fixed-point numbers of a few bits, whose unit is a share of the largest magnitude of a block.

    ``C(x)_i = d SR(clip(x_i / d, -2^(bits-1), q))`` with ``q = 2^(bits-1) - 1`` and ``d = clip max|x| / q``, where SR
    rounds up or down at random, without bias, or to the nearest

    Args:
        bits: bits of a code, 2 to 8.
        clip: share of the largest magnitude that the codes cover, in (0, 1]; 1 does not clip.
        block: elements that share d, >= 1.
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it, unless numbers go to the nearest.
        nearest: round to the nearest code, ties to even: the same codes each time, as weights need them.
    Wire:
        one d (float32) for each block, then codes + 2^(bits-1), packed: bits n + 32 ceil(n/block) bits, one round.
    Bias:
        clip = 1: unbiased, omega = min(B/(4 q^2), (sqrt(B)-1)/2). clip < 1: biased by what exceeds the range, with a
        variance of at most d^2/4 for each number. With ``shrink`` biased, delta = clip/(1+omega). Exact for grid points
        and zeros, if clip = 1. Random numbers have 16 bits: a mean is off by at most 2^-17 d, and what is smaller than
        that is always 0. With ``nearest`` biased; clip = 1: delta = 4 q^2 / (4 q^2 + B - 1).
    Differs from the paper:
        the operator only: variance reduction (a second gradient, of a snapshot) and double sampling belong to the
        training loop. The paper has one d for the whole vector. The code -2^(bits-1) is used only where clip < 1.
    Example:
        >>> method("lpc:bits=8")
        Allgather(compressor=LPC(bits=8, clip=1.0, block=1024, shrink=False,
                                 nearest=False))

    Reference:
        Yu, Wu and Huang, "Exploring Fast and Communication-Efficient Algorithms in Large-scale Distributed Networks",
        AISTATS 2019, arXiv 1901.08924.
    """

    handles_many: ClassVar[bool] = True
    bits: Annotated[int, Range(2, 8)] = 4
    clip: Share = 1.0
    block: Count = 1024
    shrink: bool = False
    nearest: bool = False

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.nearest and self.shrink:
            raise ConfigurationError(
                "lpc: shrink=true with nearest=true; legal: one of them, since to the nearest it contracts"
            )

    @property
    def q(self) -> int:
        """The largest positive code."""
        return self._code.q

    @property
    def _code(self) -> FixedPoint:
        return FixedPoint(self.bits, self.block, self.clip, self.shrink, self.nearest)

    def with_memory(self) -> Compressor:
        return self if self.nearest else replace(self, shrink=True)

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        return encode_fixed(rows, self._code, rng, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_fixed(received, out, self._code, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_fixed_many(message, many, self._code, rng.step)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_fixed_many(rows, many, self._code, scale)

    def passes(self, n: int) -> int | None:
        return passes_with_largest(self.block)

    def facts(self, n: int) -> Facts:
        payload, omega = self._code.payload(n), self._code.variance(n)
        if self.nearest:
            B, q = min(n, self.block), self.q  # the largest of a block is exact, of others at most half a unit is lost
            return Facts(contraction=4 * q**2 / (4 * q**2 + B - 1) if self.clip == 1 else None, payload=payload)
        if self.shrink:
            return Facts(contraction=self.clip / (1 + omega), deterministic=False, payload=payload)
        if self.clip < 1:
            return Facts(deterministic=False, payload=payload)
        bias = ROUNDING_BIAS / self.q + 1e-6  # numbers as close as that to a grid point count as being on it
        return Facts(unbiased=True, variance=omega, deterministic=False, payload=payload, bias=bias)

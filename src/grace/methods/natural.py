"""Natural compression (Horvath et al., MSML 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import Count, check_knobs
from grace.errors import out_of_range
from grace.kernels import (
    TensorList,
    encode_powers,
    encode_powers_many,
    passes_with_largest,
    powers_bytes,
    sum_powers,
    sum_powers_many,
)
from grace.random import Stream
from grace.registry import register


@register(
    "natural",
    communicator="allgather",
    family="quantization",
    cases=["", "bits=9", "bits=4,block=16", "bits=4,memory=residual"],
)
@dataclass(frozen=True, slots=True)
class Natural(Fused):
    """Natural compression: stochastic rounding to a power of two.

    ``C(x)_i = sgn(x_i) 2^(e + 1) with probability p, else sgn(x_i) 2^e``, where ``|x_i| = 2^e (1 + p)``

    Args:
        bits: bits of a code: 9 (sign and exponent, the paper's), 8 (the 126 octaves below the largest number of a
            block) or 4 (the 7 octaves below it).
        block: elements that share a range, >= 1; by default all of a row for 8 bits, 128 (legal: at most 2048) for 4.
            No effect for 9.
    Wire:
        the exponent (int8) of each block's range (not for 9 bits), then the codes, packed: bits n + 8 ceil(n/block)
        bits, one round.
    Bias:
        unbiased up to 2^-17 of each number, as random numbers have 16 bits; omega = 1/8, for 4 bits 1/8 + B/4096: a
        number below the range becomes the smallest power in it, or 0. As omega < 1, delta = 1 - omega, and a memory is
        legal as it is. Exact for 0 and powers of two in the range.
    Differs from the paper:
        8 and 4 bits. Subnormal numbers become 0 where the range reaches down to them, and numbers above 2**127
        become 2**127. No natural dithering.
    Example:
        >>> method("natural:bits=4")
        Allgather(compressor=Natural(bits=4, block=None))

    Reference:
        Horvath, Ho, Horvath, Sahu, Canini and Richtarik, "Natural Compression for Distributed Deep Learning", MSML
        2022, arXiv 1905.10988.
    """

    handles_many: ClassVar[bool] = True
    bits: Literal[4, 8, 9] = 8
    block: Count | None = None

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.bits == 4 and self.block is not None and self.block > 2048:  # so that omega < 1
            raise out_of_range("natural", "block", self.block, "at most 2048 with bits=4")

    def _block(self, n: int) -> int:
        return self.block if self.block is not None else 128 if self.bits == 4 else n

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return encode_powers(rows, self.bits, self._block(rows.shape[1]), rng, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_powers(received, out, self.bits, self._block(out.shape[1]), scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_powers_many(message, many, self.bits, self._block(max(many.sizes)), rng.step)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_powers_many(rows, many, self.bits, self._block(max(many.sizes)), scale)

    def passes(self, n: int) -> int | None:
        return 1 if self.bits == 9 else passes_with_largest(self._block(n))

    def facts(self, n: int) -> Facts:
        block = self._block(n)
        omega = 1 / 8 + (min(n, block) / 4096 if self.bits == 4 else 0)
        payload = powers_bytes(n, self.bits, block)
        return Facts(
            unbiased=True,
            variance=omega,
            contraction=1 - omega,
            deterministic=False,
            payload=payload,
            bias=ROUNDING_BIAS,
        )

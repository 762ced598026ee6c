"""QSGD: gradient quantization and encoding (Alistarh et al., NeurIPS 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import Count, Range, check_knobs
from grace.errors import ConfigurationError
from grace.kernels import (
    Levels,
    TensorList,
    dequantize_sum,
    dequantize_sum_many,
    passes_with_largest,
    quantize,
    quantize_many,
)
from grace.random import Stream
from grace.registry import register

_POWERS = frozenset(1 << k for k in range(1, 16))


@register(
    "qsgd",
    communicator="allgather",
    family="quantization",
    cases=[
        "bits=4,bucket=32",
        "levels=1",
        "bits=2,norm=l2",
        "bits=3,bucket=7,norm=l2",
        "bits=8",
        "levels=5,memory=residual",
        "bits=16,bucket=1",
        "levels=4,shrink=true",
    ],
    recovers={"one hot": "bits=4"},
)
@dataclass(frozen=True, slots=True)
class QSGD(Fused):
    """QSGD: stochastic rounding to s levels on each side of zero, relative to the norm of a bucket.

    ``C(x)_i = N sgn(x_i) l_i / s``, where ``l_i`` rounds ``s |x_i| / N`` up or down at random, without bias, and N is
    the norm of the bucket that holds i

    Args:
        bits: bits of a code, 2 to 16; s = 2**(bits-1) - 1. Default 4.
        levels: s itself, 1 to 32767, instead of ``bits``; 1, 3, 7 and so on are ``bits`` of 2, 3, 4 and so on.
        bucket: elements that share a norm, >= 1.
        norm: "linf" (the largest magnitude, as in the paper's experiments) or "l2" (as in its theory).
        shrink: multiply by 1/(1+omega), which makes it a contraction; a memory sets it.
    Wire:
        one norm (float32) for each bucket, then codes + s, packed: n ceil(log2(2s+1)) + 32 ceil(n/bucket) bits; with
        s = 1 five codes to a byte: 1.6 n bits. One round.
    Bias:
        unbiased; omega = min(B/s^2, sqrt(B)/s) for l2, min(B/(4 s^2), (sqrt(B)-1)/2 if s = 1) for linf. With
        ``shrink``: biased, delta = 1/(1+omega). Random numbers have 16 bits: a mean is off by at most 2^-17 N/s, and what is
        smaller than that is always 0.
    Differs from the paper:
        fixed-width codes instead of Elias coding. A bucket whose norm is below 2**-126 is sent as zero.
    Example:
        >>> method("qsgd:bits=8,bucket=1024")
        Allgather(compressor=QSGD(bits=8, levels=None, bucket=1024, norm='linf', shrink=False))

    Reference:
        Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
        Encoding", NeurIPS 2017, arXiv 1610.02132, sections 3.1 and 4.
    """

    handles_many: ClassVar[bool] = True
    bits: Annotated[int, Range(2, 16)] | None = None
    levels: Annotated[int, Range(1, 32767)] | None = None
    bucket: Count = 256
    norm: Literal["linf", "l2"] = "linf"
    shrink: bool = False

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.bits is not None and self.levels is not None:
            raise ConfigurationError(f"qsgd: give bits or levels, not both (bits={self.bits}, levels={self.levels})")
        bits = 4 if self.levels is None and self.bits is None else self.bits
        if self.levels is not None and self.levels + 1 in _POWERS:
            bits = self.levels.bit_length() + 1
        if bits is not None:  # one method has one spelling
            object.__setattr__(self, "bits", bits)
            object.__setattr__(self, "levels", None)

    @property
    def s(self) -> int:
        """Levels on each side of zero."""
        if self.levels is not None:
            return self.levels
        assert self.bits is not None
        return (1 << (self.bits - 1)) - 1

    @property
    def _levels(self) -> Levels:
        return Levels(self.s, self.bucket, self.norm, self.shrink)

    def with_memory(self) -> QSGD:
        return replace(self, shrink=True)

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return quantize(rows, self._levels, rng, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        dequantize_sum(received, out, self._levels, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return self.encode_clipped_many(message, many, rng, 0.0)

    def encode_clipped_many(self, message: Tensor, many: TensorList, rng: Stream, clip: float) -> Tensor:
        """As :meth:`encode_many_`, into ``message [s]`` uint8, of numbers that are cut to ``clip`` deviations of their bucket,
        unless that is 0: ``[T]`` bool.
        """
        return quantize_many(message, many, self._levels, rng.step, clip)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return dequantize_sum_many(rows, many, self._levels, scale)

    def passes(self, n: int) -> int | None:
        return passes_with_largest(self.bucket) if self.s > 1 and self.norm == "linf" else 2

    def facts(self, n: int) -> Facts:
        payload, omega = self._levels.payload(n), self._levels.variance(n)
        if self.shrink:
            return Facts(contraction=1 / (1 + omega), deterministic=False, payload=payload)
        most = math.sqrt(min(n, self.bucket)) if self.norm == "l2" else 1.0  # of N, in units of the largest number
        bias = most * ROUNDING_BIAS / self.s
        return Facts(unbiased=True, variance=omega, deterministic=False, payload=payload, bias=bias)

"""FP8-LM: gradients in eight bits (Peng et al., 2023).

Letters: F is the largest number of the format, m its fraction bits, 2**least its smallest normal number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Fused
from grace.contract.facts import ROUNDING_BIAS, Facts
from grace.contract.knobs import Count
from grace.flags.finite import Flag
from grace.kernels import (
    E4M3,
    E5M2,
    TensorList,
    encode_floats,
    encode_floats_many,
    float_bytes,
    passes_with_largest,
    sum_floats,
    sum_floats_many,
)
from grace.random import Stream
from grace.registry import register

FORMATS = {"e4m3": E4M3, "e5m2": E5M2}


@register("fp8", communicator="allgather", family="cast", cases=["block=32", "fmt=e5m2", "stochastic=true"])
@dataclass(frozen=True, slots=True)
class FP8(Fused):
    """Gradients as 8-bit floats, scaled block by block to the full range of the format.

    ``C(x)_i = s fp8(x_i / s)`` with ``s = max |x| / F`` of the block that holds i

    Args:
        fmt: "e4m3" (largest number F = 448, 3 fraction bits) or "e5m2" (57344, 2).
        block: elements that share a scale, >= 1.
        stochastic: round up or down at random, without bias, instead of to nearest even.
    Wire:
        one scale (float32) for each block, then a byte each: 8 n + 32 ceil(n/block) bits, one round.
    Bias:
        to nearest: biased; relative error at most 2^-4 (e4m3) or 2^-3 (e5m2), near zero absolute error at most 2^-10 s
        or 2^-17 s: delta = 1 - 2^-8 or 1 - 2^-6, less the latter. Stochastic: unbiased; omega = u^2/(4 (1+u)) with
        u = 1/8 or 1/4, plus B times the variance near zero; random numbers have 16 bits, which leaves a bias of at most 2^-17
        of a step.
    Differs from the paper:
        one scale for a block, not for a tensor, so that small layers of a bucket survive. No scale shared by the ranks,
        and no automatic factor for head-room: nothing is summed in 8 bits.
    Example:
        >>> method("fp8:fmt=e5m2")
        Allgather(compressor=FP8(fmt='e5m2', block=512, stochastic=False))

    Reference:
        Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023, arXiv 2310.18313; the formats: Micikevicius et
        al., "FP8 Formats for Deep Learning", 2022, arXiv 2209.05433.
    """

    handles_many: ClassVar[bool] = True
    fmt: Literal["e4m3", "e5m2"] = "e4m3"
    block: Count = 512
    stochastic: bool = False

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        return encode_floats(rows, FORMATS[self.fmt], self.block, rng if self.stochastic else None, memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_floats(received, out, FORMATS[self.fmt], self.block, scale, add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_floats_many(message, many, FORMATS[self.fmt], self.block, rng.step if self.stochastic else None)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_floats_many(rows, many, FORMATS[self.fmt], self.block, scale)

    def passes(self, n: int) -> int | None:
        return passes_with_largest(self.block)

    def facts(self, n: int) -> Facts:
        kind, payload = FORMATS[self.fmt], float_bytes(n, self.block)
        unit, B = 2.0**-kind.m, min(n, self.block)  # spacing of the numbers in [1, 2)
        near_zero = (
            B * (2.0**kind.least * unit / 2 / kind.F) ** 2
        )  # half a spacing each, in units of the largest number
        if self.stochastic:
            omega = unit**2 / (4 * (1 + unit)) + near_zero
            return Facts(
                unbiased=True,
                variance=omega,
                contraction=1 - omega,
                deterministic=False,
                payload=payload,
                bias=ROUNDING_BIAS,
            )
        return Facts(contraction=1 - (unit / 2) ** 2 - near_zero, payload=payload)
